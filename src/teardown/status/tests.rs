//! The status and its patch, for pods in every state of API and runtime.

mod conditions;
mod containers;
mod fixture;
mod patch;
mod phase;
mod properties;
