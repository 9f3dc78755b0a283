//! Commands on the pages: verbs, flags and `make` targets exist.

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

/// Commands below the flags of a verb and of those below it.
fn examples(command: &Command, found: &mut Vec<String>) {
    let text = command.get_after_long_help().or_else(|| command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let text = text.replace("\\\n", " ");
    let is_command = |line: &&str| line.starts_with("pod-teardown ") || line.starts_with("kubectl teardown ");
    found.extend(text.lines().map(str::trim).filter(is_command).map(str::to_owned));
    for verb in command.get_subcommands() {
        examples(verb, found);
    }
}

#[test]
fn every_example_of_the_help_is_accepted_by_the_program() {
    let mut found = Vec::new();
    examples(&Cli::command(), &mut found);
    examples(&KubectlCli::command(), &mut found);
    let refused = |example: &String| {
        let (definition, arguments) = arguments(example).unwrap();
        Some(format!("{example}: {}", refusal(definition, &arguments, false)?))
    };
    let wrong: Vec<_> = found.iter().filter_map(refused).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(found.len() > 15, "{found:?}");
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
