// Live figures: what the broker's figures have become since the page was drawn. Without this script the page shows them when it is opened.
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
      if (banner.textContent !== said.broker) banner.textContent = said.broker;
      for (const [name, text] of Object.entries(said.figures || {})) {
        for (const place of document.querySelectorAll(`[data-figure="${CSS.escape(name)}"]`)) {
          if (place.textContent !== text) place.textContent = text;
        }
      }
    };
  }

  // A page that nobody looks at holds no connection.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) { stream.close(); stream = null; }
    else if (!document.hidden && !stream) hear();
  });
  if (!document.hidden) hear();
})();
