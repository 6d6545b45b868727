// A page on a machine that stalls: frames, requests and their answers wait at random. Requests keep their order.
(() => {
  const pause = () => (Math.random() < 0.5 ? 0 : Math.random() * 500);
  const frame = window.requestAnimationFrame.bind(window);
  const cancel = window.cancelAnimationFrame.bind(window);
  const frames = new Map();
  let number = 1 << 20;
  window.requestAnimationFrame = (call) => {
    const id = number++;
    const waits = setTimeout(() => {
      const later = frame((now) => {
        frames.delete(id);
        call(now);
      });
      frames.set(id, () => cancel(later));
    }, pause());
    frames.set(id, () => clearTimeout(waits));
    return id;
  };
  window.cancelAnimationFrame = (id) => {
    frames.get(id)?.();
    frames.delete(id);
  };
  const rest = () => new Promise((resolve) => setTimeout(resolve, pause()));
  const fetch = window.fetch.bind(window);
  let before = Promise.resolve();
  window.fetch = async (...asked) => {
    before = before.then(rest);
    await before;
    const answer = await fetch(...asked);
    // a stream that gradio's client reads later than it is closed loses what was asked meanwhile (6.31)
    const isStream = String(asked[0]?.url ?? asked[0]).includes("/queue/data");
    if (!isStream) await rest();
    return answer;
  };
})();
