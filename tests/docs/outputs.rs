//! Commands of the pages run against a real agent, with the exit code and the kind of output that the page shows.
#![allow(clippy::print_stdout, reason = "authors of pages copy it")]

use crate::{
    node::Node,
    pages::{self, Shown},
};

/// The first words of lines.
fn first_words<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    lines
        .into_iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// The line that begins with the first word which is missing in the output, in the order of the page. Numbers, pictures and
/// texts differ from run to run.
fn missing_line<'a>(shown: &'a Shown, output: &str) -> Option<&'a str> {
    let printed = first_words(output.lines());
    let mut rest = printed.iter();
    let is_missing = |line: &&String| {
        let word = line.split_whitespace().next();
        word.is_some_and(|word| word != "..." && !rest.any(|printed| *printed == word))
    };
    shown.output.iter().find(is_missing).map(String::as_str)
}

#[test]
fn shown_lines_must_appear_in_their_order() {
    let shown = Shown {
        command: String::new(),
        output: ["Role  active", "", "default  db-0"].map(str::to_owned).to_vec(),
    };
    assert_eq!(missing_line(&shown, "Role  standby\nAPI\ndefault  x"), None);
    assert_eq!(missing_line(&shown, "default  x\nRole  standby"), Some("default  db-0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_that_a_page_shows_has_its_exit_code_and_output() {
    let (mut wrong, mut run) = (Vec::new(), 0);
    for page in pages::all() {
        let blocks: Vec<_> = page.blocks().into_iter().filter(pages::Block::is_run).collect();
        if blocks.is_empty() {
            continue;
        }
        let node = Node::start().await;
        for block in blocks {
            for shown in block.commands() {
                run += 1;
                let arguments = &pages::words(&shown.command)[1..];
                let output = node.run(arguments).await;
                // With --nocapture, for authors of pages.
                println!("$ {}\n{}", shown.command, output.text);
                let at = format!("{}:{}: {}", page.path.display(), block.line, shown.command);
                if output.code != Some(block.exit_code()) {
                    wrong.push(format!("{at}: exit code {:?}\n{}", output.code, output.text));
                } else if let Some(line) = missing_line(&shown, &output.text) {
                    wrong.push(format!("{at}: not in the output: {line}\n{}", output.text));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(run > 5, "{run} commands were run");
}
