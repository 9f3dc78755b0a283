//! The rules of a pod's status, each by the claim it makes.

mod arbitrary;
mod conditions;
mod containers;
mod fixture;
mod last_words;
mod patch;
mod phase;
mod properties;
mod strategic_merge;
mod terminated;
mod unknown;
