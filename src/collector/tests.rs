//! The graph and its decisions against a simulated cluster, checked by rules that are slow and plain.

mod cases;
mod collector;
mod doubt;
mod judge;
mod monitor;
mod orphans;
mod random;
mod steps;
mod texts;
mod world;
