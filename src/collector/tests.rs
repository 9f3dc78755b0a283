//! The graph and its decisions against a simulated cluster, checked by rules that are slow and plain.

mod cases;
mod collector;
mod monitor;
mod orphans;
mod random;
mod rules;
mod steps;
mod strings;
mod unknown;
mod world;
