/** The page of the service. */

import { mount } from "svelte";
import { AppContext } from "./app/context.svelte";
import Page from "./app/Page.svelte";
import { ROOMS } from "./app/rooms";
import { browserAddress } from "./app/view.svelte";

const app = new AppContext({ address: browserAddress, storage: localStorage });
mount(Page, { target: document.getElementById("app")!, props: { app, rooms: ROOMS } });
