//! The command as people meet it: flags, mistakes, remedies and exit codes of the real binary.

mod command;

mod check;
mod flags;
mod run;
