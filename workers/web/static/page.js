// Live figures: replaces the figures of the page as they change. Without this script the page shows the figures of when it was opened.
"use strict";
(() => {
  const address = document.currentScript.dataset.live;
  const banner = document.getElementById("broker");
  const dot = document.getElementById("live");
  if (!window.EventSource || !banner) return;
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
