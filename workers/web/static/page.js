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
