/** The rooms, in the order of the navigation. A room is shown if the served models meet its needs. */

import { beams } from "../rooms/beams";
import { glass } from "../rooms/glass";
import { tour } from "../rooms/tour";
import { translate } from "../rooms/translate";
import type { Room } from "./room";

export const ROOMS: Room[] = [translate, glass, beams, tour];
