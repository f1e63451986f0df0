// Live figures: replaces the figures of the page as they change. Without this script the page shows the figures of when it was opened.
// A screen of something that is under way is opened again after some seconds, but not while somebody fills in a form on it.
"use strict";
(() => {
  const seconds = Number(document.currentScript.dataset.again);
  if (!seconds) return;

  function isFilledIn() {
    const fields = [...document.querySelectorAll("form input:not([type=hidden]):not([type=checkbox]), form textarea")];
    return !!document.activeElement?.closest("form") || fields.some((field) => field.value !== "");
  }

  setInterval(() => { if (!document.hidden && !isFilledIn()) location.reload(); }, seconds * 1000);
})();
(() => {
  const address = document.currentScript.dataset.live;
  const banner = document.getElementById("broker");
  const dot = document.getElementById("live");
  if (!address || !window.EventSource || !banner) return;
  let stream = null;

  // An alarm as the overview has it; what stands between backticks is a command.
  function alarm([what, todo]) {
    const item = document.createElement("li"), bold = document.createElement("b");
    bold.textContent = what;
    item.append(bold, " ");
    todo.split("`").forEach((text, at) => {
      const part = at % 2 ? document.createElement("code") : document.createTextNode(text);
      part.textContent = text;
      if (text) item.append(part);
    });
    return item;
  }

  // The heading and the list of alarms; those of the books, which are read when the screen is opened, stay.
  function sound(alarms) {
    const heading = document.getElementById("verdict"), list = document.getElementById("alarms");
    if (!heading || !alarms) return;
    const old = [...list.querySelectorAll("li:not([data-kept])")], items = alarms.map(alarm);
    const html = (all) => all.map((each) => each.outerHTML).join("");
    if (html(old) === html(items)) return;
    old.forEach((each) => each.remove());
    list.prepend(...items);
    const things = list.children.length;
    list.hidden = !things;
    const said = !things ? "All is well" : things === 1 ? "1 thing needs an operator" : `${things} things need an operator`;
    if (heading.textContent === said) return;
    const mark = document.createElement("span");
    mark.className = things ? "mark bad" : "mark";
    heading.replaceChildren(mark, said);
  }

  function hear() {
    stream = new EventSource(address);
    stream.onopen = () => { dot.hidden = false; dot.title = "live"; dot.classList.remove("bad"); };
    stream.onerror = () => { dot.classList.add("bad"); dot.title = "no live figures"; };
    stream.onmessage = (event) => {
      const said = JSON.parse(event.data);
      banner.hidden = !said.broker;
      dot.classList.toggle("bad", !!said.broker);
      dot.title = said.broker ? "no live figures" : "live";
      if (banner.textContent !== said.broker) banner.textContent = said.broker;
      sound(said.alarms);
      for (const [name, text] of Object.entries(said.figures || {})) {
        for (const place of document.querySelectorAll(`[data-figure="${CSS.escape(name)}"]`)) {
          if (place.textContent !== text) place.textContent = text;
        }
      }
    };
  }

  // A hidden page closes its connection.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) { stream.close(); stream = null; }
    else if (!document.hidden && !stream) hear();
  });
  if (!document.hidden) hear();
})();
