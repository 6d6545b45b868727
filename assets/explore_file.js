// A file of prompts, read here: its text goes into the box where it can be seen, nothing is uploaded.

element.classList.add("explore-part");
installStyle(STYLE);
const host = element.querySelector(".mars-part");
host.classList.add("explore-file");

const input = host.appendChild(make("input"));
Object.assign(input, { type: "file", id: "explore-file-input", accept: ".txt,.jsonl,.json,.csv,text/plain" });
const label = host.appendChild(make("label", "", "Take prompts from a file …"));
label.htmlFor = input.id;
const note = host.appendChild(make("span", "", "text, one a line, or JSON lines with prompt"));

input.addEventListener("change", async () => {
  const file = input.files[0];
  input.value = ""; // the same file again is a change too
  if (!file) return;
  if (file.size > 4 * props.most) {
    note.textContent = `${file.name} is too large for a list of prompts.`;
    return;
  }
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    note.textContent = file.name;
    trigger("upload", { name: file.name, text });
  } catch {
    note.textContent = `${file.name} is not UTF-8 text.`;
  }
});
