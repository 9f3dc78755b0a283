//! The pages: commands parse and run, links lead somewhere, and each page says for whom it is.

#![allow(clippy::unwrap_used, reason = "it fails the test")]
#![allow(clippy::disallowed_methods, reason = "it reads the pages")]

mod node;
mod pages;

mod commands;
mod generated;
mod links;
mod outputs;
