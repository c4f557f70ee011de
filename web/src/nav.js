// SPDX-License-Identifier: Apache-2.0
// A menu that is wider than its place says that there is more of it.

const NEAR = 4;

export function startNav() {
	const nav = document.querySelector(".top nav");
	const look = () => nav.classList.toggle("more", nav.scrollWidth - nav.clientWidth - nav.scrollLeft > NEAR);
	nav.addEventListener("scroll", look, { passive: true });
	new ResizeObserver(look).observe(nav);
}
