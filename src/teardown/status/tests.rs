//! Claims about the pod status.

mod arbitrary;
mod conditions;
mod containers;
mod fixture;
mod messages;
mod patch;
mod phase;
mod properties;
mod strategic_merge;
mod terminated;
mod unknown;
