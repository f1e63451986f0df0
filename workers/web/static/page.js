// Updates the figures of an open page. Without this script the page keeps the figures that it was opened with.
// A screen with `data-again` is reloaded after some seconds, but not while a form on it is filled in.
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

  // An alarm, as in overview.html; the text between backticks is a command.
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

  // Updates the heading and the list of alarms. The alarms of the books (`data-kept`) stay as they are.
  function showAlarms(alarms) {
    const heading = document.getElementById("verdict"), list = document.getElementById("alarms");
    if (!heading || !alarms) return;
    const old = [...list.querySelectorAll("li:not([data-kept])")], items = alarms.map(alarm);
    const html = (all) => all.map((each) => each.outerHTML).join("");
    if (html(old) === html(items)) return;
    old.forEach((each) => each.remove());
    list.prepend(...items);
    const things = list.children.length;
    list.hidden = !things;
    const verdict = !things ? "All is well" : things === 1 ? "1 thing needs an operator" : `${things} things need an operator`;
    if (heading.textContent === verdict) return;
    const mark = document.createElement("span");
    mark.className = things ? "mark bad" : "mark";
    heading.replaceChildren(mark, verdict);
  }

  function connect() {
    stream = new EventSource(address);
    stream.onopen = () => { dot.hidden = false; dot.title = "live"; dot.classList.remove("bad"); };
    stream.onerror = () => { dot.classList.add("bad"); dot.title = "no live figures"; };
    stream.onmessage = (event) => {
      const news = JSON.parse(event.data);
      banner.hidden = !news.broker;
      dot.classList.toggle("bad", !!news.broker);
      dot.title = news.broker ? "no live figures" : "live";
      if (banner.textContent !== news.broker) banner.textContent = news.broker;
      showAlarms(news.alarms);
      for (const [name, text] of Object.entries(news.figures || {})) {
        for (const place of document.querySelectorAll(`[data-figure="${CSS.escape(name)}"]`)) {
          if (place.textContent !== text) place.textContent = text;
        }
      }
    };
  }

  // A hidden page closes its connection.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) { stream.close(); stream = null; }
    else if (!document.hidden && !stream) connect();
  });
  if (!document.hidden) connect();
})();
