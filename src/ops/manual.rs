//! Generates manual pages and shell completions.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use crate::cli::Cli;

/// Manual section of system administration programs.
const SECTION: &str = "8";
/// Prefix of the exit codes in a help text.
const EXIT: &str = "Exit code: ";
/// Files of the FILES section.
const FILES: [(&str, &str); 4] = [
    (
        "/etc/default/pod-teardown",
        "Flags of the service, as environment variables.",
    ),
    ("/var/lib/pod-teardown", "What must survive a crash; see --state-dir."),
    (
        "/run/pod-teardown/pod-teardown.sock",
        "Where the agent is asked; see --socket.",
    ),
    (
        "/etc/systemd/system/kubelet.service.d/10-pod-teardown.conf",
        "A kubelet that is about to start requests a handover, if this file was copied from the documentation.",
    ),
];

/// A manual page could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write {path:?}: {source}")]
pub struct PageError {
    path: PathBuf,
    source: io::Error,
}

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
pub fn write(dir: &Path) -> Result<(), PageError> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    pages(&program, dir)
}

fn pages(command: &Command, dir: &Path) -> Result<(), PageError> {
    let man = Man::new(command.clone())
        .section(SECTION)
        .source(concat!("pod-teardown ", env!("CARGO_PKG_VERSION")))
        .manual("pod-teardown");
    let path = dir.join(man.get_filename());
    let written = page(&man, command).and_then(|page| fs::write(&path, page));
    written.map_err(|source| PageError { path, source })?;
    command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .try_for_each(|verb| pages(verb, dir))
}

fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let is_program = command.get_display_name().is_none_or(|name| name == command.get_name());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut tail = Roff::new();
    if let Some(help) = command.get_after_help() {
        add_after_help(&help.to_string(), &mut tail);
    }
    if is_program {
        tail.control("SH", ["FILES"]);
        for (file, what) in FILES {
            tail.control("TP", []).text([bold(file)]).text([roman(what)]);
        }
    } else {
        tail.control("SH", ["SEE ALSO"])
            .text([bold("pod-teardown"), roman(format!("({SECTION})"))]);
    }
    tail.to_writer(&mut page)?;
    Ok(page)
}

/// Adds the text below the flags of a help text: examples, notes and exit codes.
fn add_after_help(help: &str, page: &mut Roff) {
    let (help, exit) = help.split_once(EXIT).unwrap_or((help, ""));
    for part in help.split("\n\n").map(str::trim_end).filter(|part| !part.is_empty()) {
        match part.split_once('\n') {
            Some((heading, examples)) if heading.starts_with("Example") => {
                page.control("SH", ["EXAMPLES"]).control("nf", []);
                for line in examples.lines() {
                    page.text([roman(line)]);
                }
                page.control("fi", []);
            }
            _ => {
                page.control("SH", ["NOTES"]).text([roman(part)]);
            }
        }
    }
    if !exit.is_empty() {
        page.control("SH", ["EXIT STATUS"]).text([roman(exit)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_exit_codes_have_a_section() {
        let mut page = Roff::new();
        add_after_help("Examples:\n  a b\n  c\n\nSo it is. Exit code: 0; 64 wrong.", &mut page);
        let page = page.to_roff();
        let parts: Vec<_> = page.split(".SH ").collect();
        assert_eq!(parts.len(), 4, "{page}");
        assert!(parts[1].starts_with("EXAMPLES\n.nf\n  a b\n  c\n.fi"), "{page}");
        assert!(parts[2].starts_with("NOTES\nSo it is."), "{page}");
        assert!(parts[3].starts_with("\"EXIT STATUS\"\n0; 64 wrong."), "{page}");
    }

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
        for part in ["\\-\\-take\\-over\\-after", "POD_TEARDOWN_KUBECONFIG", "EXAMPLES"] {
            assert!(run.contains(part), "{part} is not in {run}");
        }
        let error = write(Path::new("/no/such/dir")).unwrap_err();
        assert!(error.to_string().contains("/no/such/dir/pod-teardown.8"), "{error}");
    }
}
