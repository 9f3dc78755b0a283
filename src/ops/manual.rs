//! Generates manual pages and shell completions.

use std::{fs, io, path::Path};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;

/// Manual section of system administration programs.
const SECTION: &str = "8";

/// The completion script for a shell.
pub fn completion(shell: Shell) -> String {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    let mut program = Command::new("pod-teardown")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "pod-teardown", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a page for the program and one for each verb into `dir`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(dir: &Path) -> io::Result<()> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    pages(&program, dir)
}

fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    let man = Man::new(command.clone())
        .section(SECTION)
        .source(concat!("pod-teardown ", env!("CARGO_PKG_VERSION")))
        .manual("pod-teardown");
    let path = dir.join(man.get_filename());
    let mut page = Vec::new();
    let written = man.render(&mut page).and_then(|()| {
        // The library has no better name for the text below the flags.
        let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\n", ".SH EXAMPLES AND EXIT STATUS\n");
        fs::write(&path, page)
    });
    written.map_err(|error| io::Error::other(format!("write {}: {error}", path.display())))?;
    command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .try_for_each(|verb| pages(verb, dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_except_hidden_ones_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path()).unwrap();
        let page = |name: &str| fs::read_to_string(dir.path().join(format!("pod-teardown{name}.8")));
        for verb in [
            "",
            "-run",
            "-check",
            "-why",
            "-plan",
            "-handover",
            "-gc",
            "-gc-graph",
            "-completion",
        ] {
            let page = page(verb).unwrap();
            assert!(page.contains(".SH NAME\n") && page.contains(".SH SYNOPSIS\n"), "{page}");
        }
        assert!(page("-man").is_err());
        let run = page("-run").unwrap();
        for part in [
            "\\-\\-take\\-over\\-after",
            "POD_TEARDOWN_KUBECONFIG",
            ".SH EXAMPLES AND EXIT STATUS\nExamples:\n",
        ] {
            assert!(run.contains(part), "{part} is not in {run}");
        }
        let error = write(Path::new("/no/such/dir")).unwrap_err();
        assert!(error.to_string().contains("/no/such/dir/pod-teardown.8"), "{error}");
    }
}
