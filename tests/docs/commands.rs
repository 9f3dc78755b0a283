//! Commands on the pages: verbs, flags and `make` targets exist.

use std::{collections::BTreeSet, fs};

use clap::{Command, CommandFactory as _, error::ErrorKind};
use pod_teardown::cli::{Cli, kubectl::KubectlCli};

use crate::pages::{self, Page};

/// Words before the program: of another shell, on another node, or of a unit.
fn program(word: &str) -> bool {
    let word = word
        .trim_start_matches("ExecStartPre=-")
        .trim_start_matches("ExecStart=");
    word == "pod-teardown" || word.ends_with("/pod-teardown")
}

/// The definition of our program, and its arguments in this command.
fn arguments(command: &str) -> Option<(Command, Vec<String>)> {
    let words = pages::words(command);
    if let [kubectl, plugin, arguments @ ..] = &words[..]
        && (&**kubectl, &**plugin) == ("kubectl", "teardown")
    {
        return Some((KubectlCli::command(), arguments.to_vec()));
    }
    let at = words.iter().position(|word| program(word))?;
    let is_command = match words.first().map(String::as_str) {
        Some("docker") => words.get(1).is_some_and(|verb| verb == "exec"),
        _ => at == 0,
    };
    is_command.then(|| (Cli::command(), words[at + 1..].to_vec()))
}

/// Why the real definition refuses the command. Placeholders, such as `DURATION` or a missing argument, are accepted in prose.
fn refusal(definition: Command, arguments: &[String], is_prose: bool) -> Option<String> {
    let all = [&["pod-teardown".to_owned()], arguments].concat();
    let error = definition.try_get_matches_from(all).err()?;
    let has_placeholder = arguments.iter().any(|word| {
        word.len() > 1
            && word
                .chars()
                .all(|letter| letter.is_ascii_uppercase() || "/-[].".contains(letter))
    });
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand if is_prose => None,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if is_prose => None,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if is_prose && has_placeholder => None,
        _ => Some(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

#[test]
fn every_command_on_the_pages_is_accepted_by_the_program() {
    let (mut wrong, mut commands) = (Vec::new(), 0);
    let mut check = |page: &Page, line: usize, command: &str, is_prose: bool| {
        let Some((definition, arguments)) = arguments(command) else {
            return;
        };
        commands += 1;
        if let Some(why) = refusal(definition, &arguments, is_prose) {
            wrong.push(format!("{}:{line}: {command}: {why}", page.path.display()));
        }
    };
    for page in pages::all() {
        for block in page.blocks() {
            if block.is_console() {
                let shown = block.commands();
                shown
                    .iter()
                    .for_each(|shown| check(&page, block.line, &shown.command, false));
            }
            let of_unit = block.lines.iter().filter(|line| line.starts_with("Exec"));
            of_unit.for_each(|line| check(&page, block.line, line, false));
        }
        for (line, span) in page.code_spans() {
            check(&page, line, span, true);
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(commands > 80, "{commands} commands were found");
}

#[test]
fn every_make_target_on_the_pages_exists() {
    let makefile = fs::read_to_string(pages::root().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| line.starts_with(char::is_alphabetic))
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    let (mut wrong, mut found) = (Vec::new(), 0);
    let mut check = |page: &Page, line: usize, command: &str| {
        let words = pages::words(command);
        let mut words = words.iter().skip_while(|word| word.contains('='));
        if words.next().is_none_or(|word| word != "make") {
            return;
        }
        for target in words.filter(|word| !word.contains('=')) {
            found += 1;
            if !targets.contains(target.as_str()) {
                wrong.push(format!("{}:{line}: make {target}", page.path.display()));
            }
        }
    };
    for page in pages::all() {
        for block in page.blocks() {
            for (index, line) in block.lines.iter().enumerate() {
                let command = line.strip_prefix("$ ").unwrap_or(line);
                check(&page, block.line + index + 1, command);
            }
        }
        for (line, span) in page.code_spans() {
            check(&page, line, span);
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(found > 20, "{found} targets were found");
}

#[test]
fn every_console_block_is_run_or_says_why_not() {
    for page in pages::all() {
        for block in page.blocks().iter().filter(|block| block.is_console()) {
            let at = format!("{}:{}", page.path.display(), block.line);
            if let Some(reason) = block.info.strip_prefix("console not-run") {
                assert!(reason.trim_start_matches(':').trim().len() > 5, "{at}: no reason");
            } else {
                for shown in block.commands() {
                    assert!(
                        pages::words(&shown.command)
                            .first()
                            .is_some_and(|word| word == "pod-teardown"),
                        "{at}: only pod-teardown itself can be run: {}",
                        shown.command
                    );
                }
            }
        }
    }
}
