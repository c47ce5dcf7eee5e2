'use strict';
// Hover, keys and zoom; the picture itself stands in the page and needs no script.
(() => {
  const data = JSON.parse(document.getElementById('trace').textContent);
  const wide = 100000;
  const span = data.end - data.begin;

  const size = (bytes) => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let at = 0;
    while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; ++at; }
    return `${+bytes.toFixed(2)} ${units[at]}`;
  };
  // A time of day, as fine as `step` (both in us), as C++ writes it in the tables. data.clock is local time.
  const clock = (us, step = 1e3) => {
    const text = new Date(data.clock * 1e3 + us / 1e3 + 1e-6).toISOString();
    const end = step % 60e6 === 0 ? 16 : step >= 1e6 ? 19 : 23;
    const micro = step < 1e3 ? String(Math.round(us) % 1000).padStart(3, '0') : '';
    return (data.days ? text.slice(5, 10) + ' ' : '') + text.slice(11, end) + micro;
  };
  // The last of the rising times that is not after `at`; -1: none is.
  const before = (times, at) => {
    let low = -1, high = times.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (times[middle] <= at) low = middle; else high = middle;
    }
    return low;
  };
  const limit = (line, at) => {
    const i = before(line.t, at);
    return i < 0 || line.v[i] === null ? null : line.v[i];
  };

  for (const chart of data.gpus) {
    const section = document.querySelector(`section[data-gpu="${chart.name}"]`);
    const plot = section.querySelector('.plot');
    const svg = plot.querySelector(':scope > svg');
    const axis = section.querySelector('.times');
    const cursor = plot.querySelector('.cursor');
    const drag = plot.querySelector('.drag');
    const readout = section.querySelector('.readout');
    const marks = [...plot.querySelectorAll('.mark')];
    const help = readout.textContent;
    let from = 0, to = 1;      // what is shown, as parts of the whole
    let shown = -1;            // index of the sample that the cursor is at
    let pressed = null;

    const place = (part) => (part - from) / (to - from);
    const at = (part) => data.begin + part * span;
    const show = (us) => {
      const i = before(chart.t, us);
      cursor.style.display = 'block';
      cursor.style.left = `${place((us - data.begin) / span) * 100}%`;
      shown = i;
      const words = [clock(us)];
      if (i >= 0) {
        words.push(`held ${size(chart.held[i])}`);
        for (const kind of chart.kinds) if (kind.v[i]) words.push(`${kind.name} ${size(kind.v[i])}`);
      }
      const cap = limit(chart.cap, us), allowance = limit(chart.allowance, us);
      if (cap !== null) words.push(`cap ${size(cap)}`);
      if (allowance !== null) words.push(`allowance ${size(allowance)}`);
      readout.textContent = words.join(' · ');
    };
    const hide = () => { cursor.style.display = 'none'; readout.textContent = help; shown = -1; };

    const zoom = (a, b) => {
      from = Math.max(0, Math.min(a, 1)); to = Math.min(1, Math.max(b, 0));
      if (to - from < 1e-7) { from = 0; to = 1; }
      svg.setAttribute('viewBox', `${from * wide} 0 ${(to - from) * wide} 10000`);
      for (const mark of marks) {
        const x = place(+mark.dataset.x);
        const end = mark.dataset.end === undefined ? x : place(+mark.dataset.end);
        mark.style.left = `${x * 100}%`;
        if (mark.dataset.end !== undefined) mark.style.width = `${(end - x) * 100}%`;
        mark.hidden = end < 0 || x > 1;
      }
      let step = 1;
      const most = Math.max(2, Math.min(8, plot.clientWidth / (data.days ? 110 : 80)));
      const steps = [1, 2, 5];
      const long = [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400].map((s) => s * 1e6);
      for (let i = 0; (to - from) * span / step >= most && step < 60e6; ++i) step = steps[(i + 1) % 3] * 10 ** Math.floor((i + 1) / 3);
      if (step > 30e6) step = long.find((s) => (to - from) * span / s < most) ?? long.at(-1) * Math.ceil(span / long.at(-1) / most);
      axis.replaceChildren();
      const zero = data.clock * 1e6;  // round times of day, not of the run
      for (let us = Math.ceil((zero + at(from)) / step) * step - zero; us <= at(to); us += step) {
        const label = document.createElement('span');
        const part = (us - data.begin) / span;
        label.textContent = clock(us, step);
        label.style.left = `${place(part) * 100}%`;
        if (place(part) > .97) continue;
        axis.append(label);
      }
    };
    const part = (event) => {
      const box = plot.getBoundingClientRect();
      return from + Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * (to - from);
    };

    plot.addEventListener('pointermove', (event) => {
      const here = part(event);
      if (pressed !== null) {
        drag.style.display = 'block';
        drag.style.left = `${Math.min(place(pressed), place(here)) * 100}%`;
        drag.style.width = `${Math.abs(place(here) - place(pressed)) * 100}%`;
      }
      const mark = event.target.closest('.mark');
      show(at(here));
      if (mark) readout.textContent = mark.getAttribute('aria-label');
    });
    plot.addEventListener('pointerleave', () => { if (pressed === null) hide(); });
    plot.addEventListener('pointerdown', (event) => {
      if (event.button === 0 && event.pointerType !== 'touch' && !event.target.closest('.mark')) {
        pressed = part(event);
        plot.setPointerCapture(event.pointerId);
      }
    });
    plot.addEventListener('pointerup', (event) => {
      drag.style.display = 'none';
      if (pressed === null) return;
      const here = part(event), first = pressed;
      pressed = null;
      if (Math.abs(place(here) - place(first)) > .01) zoom(Math.min(first, here), Math.max(first, here));
    });
    plot.addEventListener('pointercancel', () => { pressed = null; drag.style.display = 'none'; });
    plot.addEventListener('dblclick', () => zoom(0, 1));
    plot.addEventListener('keydown', (event) => {
      const centre = shown >= 0 ? (chart.t[shown] - data.begin) / span : (from + to) / 2;
      const half = (to - from) / 2;
      const last = chart.t.length - 1;
      const move = (i) => {
        const us = chart.t[Math.max(0, Math.min(last, i))];
        const here = (us - data.begin) / span;
        if (here < from || here > to) zoom(here - half, here + half);
        show(us);
      };
      if (last < 0) return;
      const leap = event.shiftKey ? 20 : 1;
      if (event.key === 'ArrowRight') move(shown + leap);
      else if (event.key === 'ArrowLeft') move(shown - leap);
      else if (event.key === 'Home') move(0);
      else if (event.key === 'End') move(last);
      else if (event.key === '+') zoom(centre - half / 2, centre + half / 2);
      else if (event.key === '-') zoom(centre - half * 2, centre + half * 2);
      else if (event.key === 'Escape' || event.key === '0') zoom(0, 1);
      else return;
      event.preventDefault();
    });
    plot.addEventListener('blur', hide);
    for (const mark of marks) mark.addEventListener('focus', () => { readout.textContent = mark.getAttribute('aria-label'); });
    zoom(0, 1);
    addEventListener('resize', () => zoom(from, to));
  }
})();
