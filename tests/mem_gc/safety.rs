//! No dependent of a living owner is deleted, whichever kinds are not synced (`unsynced`), whatever references contain
//! (`coordinates`) and whichever server answers (`server`). No orphan is deleted, whichever watch is broken (`cut_watches`). Long lists and many kinds delay nothing (`scale`).

mod coordinates;
mod cut_watches;
mod scale;
mod server;
mod unsynced;
