//! No dependent of a living owner is deleted, whichever kinds are not synced (`unsynced`), whatever references contain
//! (`coordinates`) and whichever server answers (`server`). Long lists and many kinds delay nothing (`scale`).

mod coordinates;
mod scale;
mod server;
mod unsynced;
