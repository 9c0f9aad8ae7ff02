// The form and its answer; a question stands in the address, so that it can be sent to a colleague who serves too.
(() => {
  const form = document.getElementById("ask"), place = document.getElementById("answer"), told = document.getElementById("told");
  const names = ["model", "chip", "chips", "global_batch", "seq_len", "framework"];
  const fields = () => new URLSearchParams(names.map((name) => [name, form.elements[name].value.trim()]).filter(([, value]) => value));
  const get = async (path, query) => {
    const response = await fetch(`${path}?${query}`);
    return { text: await response.text(), file: (response.headers.get("Content-Disposition") ?? "").split('"')[1] };
  };
  const show = (where, html) => {
    where.innerHTML = html;  // the server's own page, in which the texts of users are escaped
    window.dovetail.drawAll(where);
  };
  let asking = 0;
  const ask = async (extra = {}) => {
    const query = fields(), turn = ++asking;
    history.replaceState(null, "", `?${query}`);
    told.textContent = "Searching …";
    const watch = setInterval(async () => {
      const { text } = JSON.parse((await get("progress", "")).text);
      if (turn === asking && text) told.textContent = `Searching: ${text}`;
    }, 700);
    for (const [name, value] of Object.entries(extra)) query.set(name, value);
    const { text } = await get("answer", query);
    clearInterval(watch);
    if (turn !== asking) return;
    told.textContent = "";
    show(place, text);
  };
  document.getElementById("accuracy").onclick = async () => {
    const turn = ++asking;
    told.textContent = "Predicting measured runs, half a minute …";
    const { text } = await get("accuracy", "");
    if (turn !== asking) return;
    told.textContent = "";
    show(place, text);
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  place.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "explain") ask({ explain: "1" });
    if (button.dataset.launch) {
      const query = fields();
      query.set("to", button.dataset.launch);
      query.set("start", button.dataset.start);
      const { text, file } = await get("launch", query);
      if (!file) { told.innerHTML = text; return; }
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
      link.download = file;
      link.click();
      URL.revokeObjectURL(link.href);
      told.textContent = `Saved ${link.download}.`;
    }
  });
  place.addEventListener("submit", async (event) => {
    if (event.target.id !== "what-if") return;
    event.preventDefault();
    const changes = {};
    for (const input of event.target.querySelectorAll("input")) if (input.value !== input.defaultValue) changes[input.name] = Number(input.value);
    const query = fields();
    query.set("changes", JSON.stringify(changes));
    document.getElementById("what-if-answer").innerHTML = (await get("what-if", query)).text;
  });
  const given = new URLSearchParams(location.search);
  for (const name of names) if (given.get(name)) form.elements[name].value = given.get(name);
  if (given.get("model") && given.get("chip") && given.get("chips")) ask();

  const study = document.getElementById("study");
  if (study) {
    const refresh = async () => {
      const { text } = await get("study", "");
      show(study, text);
      if (text.includes("still running")) setTimeout(refresh, 5000);
    };
    refresh();
  }
})();
