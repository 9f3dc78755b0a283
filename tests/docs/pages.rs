//! The pages and their fenced blocks.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A page of the documentation.
pub struct Page {
    /// Its path in the repository.
    pub path: PathBuf,
    pub text: String,
}

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    /// The words after the fence.
    pub info: String,
    /// Line of the fence, from 1.
    pub line: usize,
    pub lines: Vec<String>,
}

/// A command of a block, and the output that the page shows below it.
#[derive(Debug)]
pub struct Shown {
    pub command: String,
    pub output: Vec<String>,
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md, CONTRIBUTING.md and everything below docs.
pub fn all() -> Vec<Page> {
    let mut paths = vec![PathBuf::from("README.md"), PathBuf::from("CONTRIBUTING.md")];
    find(Path::new("docs"), &mut paths);
    paths.sort();
    let read = |path: PathBuf| Page {
        text: fs::read_to_string(root().join(&path)).unwrap(),
        path,
    };
    paths.into_iter().map(read).collect()
}

fn find(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root().join(dir)).unwrap() {
        let path = dir.join(entry.unwrap().file_name());
        if root().join(&path).is_dir() {
            find(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Splits a command as a shell does, without expansions. Ends at an operator or a comment.
pub fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in command.chars() {
        // The command of a substitution is one word.
        match (quote, letter) {
            (None, '(') if word.as_deref() == Some("$") => quote = Some(')'),
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | ';' | '<' | '>' | '&' | '#') if word.is_none() => return words,
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

// === impl Page ===

impl Page {
    pub fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut open) = (Vec::new(), None::<(Block, usize)>);
        for (index, line) in self.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            match (line.trim_start().strip_prefix("```"), open.take()) {
                (Some(info), None) => {
                    let block = Block {
                        info: info.trim().to_owned(),
                        line: index + 1,
                        lines: Vec::new(),
                    };
                    open = Some((block, indent));
                }
                (Some(_), Some((block, _))) => blocks.push(block),
                (None, Some((mut block, indent))) => {
                    block.lines.push(line.get(indent..).unwrap_or_default().to_owned());
                    open = Some((block, indent));
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.path.display());
        blocks
    }

    /// The lines outside fenced blocks, with their numbers.
    pub fn prose(&self) -> Vec<(usize, &str)> {
        let mut in_block = false;
        let mut lines = Vec::new();
        for (index, line) in self.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            } else if !in_block {
                lines.push((index + 1, line));
            }
        }
        lines
    }

    /// Inline code, with its line.
    pub fn code_spans(&self) -> Vec<(usize, &str)> {
        self.prose()
            .into_iter()
            .flat_map(|(number, line)| line.split('`').skip(1).step_by(2).map(move |span| (number, span)))
            .collect()
    }
}

// === impl Block ===

impl Block {
    pub fn is_console(&self) -> bool {
        self.info.split([' ', ':']).next() == Some("console")
    }

    /// Whether the test runs it. One that does not says why.
    pub fn is_run(&self) -> bool {
        self.is_console() && !self.info.starts_with("console not-run")
    }

    /// The expected exit code of its commands.
    pub fn exit_code(&self) -> i32 {
        let code = self.info.split(' ').find_map(|word| word.strip_prefix("exit="));
        code.map_or(0, |code| code.parse().unwrap())
    }

    pub fn commands(&self) -> Vec<Shown> {
        let mut commands: Vec<Shown> = Vec::new();
        for line in self.lines.iter().filter(|line| !line.starts_with("# ")) {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push(Shown {
                    command: command.to_owned(),
                    output: Vec::new(),
                }),
                (None, Some(last)) if last.command.ends_with('\\') => {
                    last.command.pop();
                    last.command.push_str(line.trim_start());
                }
                (None, Some(last)) => last.output.push(line.clone()),
                (None, None) => panic!("line {}: a console block begins with a command", self.line),
            }
        }
        commands
    }
}
