// Shows in JupyterLab's status bar how much GPU memory the current notebook's kernel holds, as curb/jupyter.py answers.
//
// A prebuilt extension is a container of module federation: init() gets the modules that JupyterLab shares, get() returns
// ours. It is hand-written, so that it needs no build.
"use strict";

(() => {
  const POLL_MS = 3000;
  let shared;

  // Returns a module that JupyterLab shares: it has one version of each.
  const module = async (name) => (await Object.values(shared[name])[0].get())();

  const size = (bytes) => {
    const [unit, name] = bytes < 2 ** 30 ? [2 ** 20, "MiB"] : [2 ** 30, "GiB"];
    return `${Number((bytes / unit).toPrecision(3))} ${name}`;
  };
  const one = (gpu) => (gpu.cap === null ? size(gpu.held) : `${size(gpu.held)} of ${size(gpu.cap)}`);
  const text = (answer) =>
    `GPU: ${answer.gpus.map(one).join(", ")}${answer.napping ? ", naps" : ""}${answer.refused ? `, ${answer.refused} refused` : ""}`;
  const title = (answer) =>
    answer.gpus.map((gpu) => `${gpu.name}: the kernel holds ${one(gpu)}`).join("\n") +
    (answer.napping ? "\nThe kernel has left its GPUs; its next CUDA call brings it back." : "");

  const plugin = async () => {
    const [{ IStatusBar }, { INotebookTracker }, { Widget }, { ServerConnection }, { URLExt }] = await Promise.all(
      ["@jupyterlab/statusbar", "@jupyterlab/notebook", "@lumino/widgets", "@jupyterlab/services", "@jupyterlab/coreutils"].map(module),
    );
    const activate = (app, notebooks, bar) => {
      const widget = new Widget();
      widget.addClass("curb-gpu-status");
      const span = widget.node.appendChild(document.createElement("span"));
      span.className = "jp-StatusBar-TextItem";
      widget.hide();
      bar.registerStatusItem("curb-gpu:status", { item: widget, align: "right", rank: 100, isActive: () => widget.isVisible });
      const { serverSettings } = app.serviceManager;
      const answer = async () => {
        const kernel = notebooks.currentWidget?.sessionContext.session?.kernel?.id;
        if (!kernel) return null;
        const response = await ServerConnection.makeRequest(URLExt.join(serverSettings.baseUrl, "curb", "kernels", kernel), {}, serverSettings);
        return response.ok ? response.json() : null;
      };
      const show = async () => {
        const now = await answer().catch(() => null); // the server restarts or lacks the extension
        const used = Boolean(now && now.gpus.length);
        span.textContent = used ? text(now) : "";
        widget.node.title = used ? title(now) : "";
        widget.setHidden(!used);
      };
      const poll = async () => {
        if (!document.hidden) await show();
        setTimeout(poll, POLL_MS);
      };
      notebooks.currentChanged.connect(show);
      poll();
    };
    return { id: "curb-gpu:status", autoStart: true, requires: [INotebookTracker, IStatusBar], activate };
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["curb-gpu"] = {
    init: (scope) => {
      shared = scope;
    },
    get: async () => {
      const made = await plugin();
      return () => ({ __esModule: true, default: made });
    },
  };
})();
