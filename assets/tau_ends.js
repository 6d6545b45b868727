// What the ends of the τ slider mean, and what its place means now. Reads the slider itself, so that the
// words follow the hand with no round trip. It may be mounted later than this.

const [left, output, right] = element.querySelector('.mars-ends').children;
const meaning = element.querySelector('.mars-meaning');
const metric = () => (tau.textContent.includes('margin') ? 'margin' : 'probability');
let tau;
function follow() {
  const slider = tau.querySelector('input[type=range]');
  const show = () => {
    const byEntropy = slider.max === '2';
    const [value, low, high] = [slider.value, slider.min, slider.max].map(Number);
    left.textContent = byEntropy ? 'exact' : 'faster';
    right.textContent = byEntropy ? 'faster' : 'exact';
    const exact = byEntropy ? value <= low : value >= high;
    const verify = document.querySelector('#verify input')?.checked;
    output.textContent = !exact ? '' : verify ? 'lossless' : '1 token a forward';
    const kept = byEntropy
      ? `entropy is at most ${slider.value} nats`
      : `${metric()} is at least ${slider.value}`;
    meaning.textContent = exact
      ? (verify ? 'A guessed token is kept only if the next forward confirms it.' : 'No token is guessed.')
      : `A guessed token is kept at once if its ${kept}.`;
  };
  for (const type of ['input', 'change']) document.addEventListener(type, () => setTimeout(show));
  new MutationObserver(() => setTimeout(show)).observe(tau, { subtree: true, attributes: true });
  show();
}
function wait() {
  tau = document.querySelector('#tau');
  if (tau?.querySelector('input[type=range]')) follow();
  else setTimeout(wait, 50);
}
wait();
