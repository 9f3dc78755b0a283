//! Checks that files and tests which pages and scripts name exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = include_str!("../../CONTRIBUTING.md");
const RULES: &str = include_str!("../../docs/explanation/safety.md");
const SECTION: &str = "## The ten rules and their tests\n";

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The sources of the agent and of its tests, by path.
fn texts() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["src", "tests"] {
        sources(&root.join(dir), &mut files);
    }
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        (file, text)
    };
    files.into_iter().map(read).collect()
}

/// The table of the rules, with the files that keep them and their tests.
fn section() -> &'static str {
    let (_, rest) = PAGE.split_once(SECTION).unwrap();
    rest.split_once("\n## ").unwrap().0
}

#[test]
fn each_safety_rule_has_files_that_keep_it_and_tests() {
    for number in 1..=10 {
        assert!(
            RULES.contains(&format!("\n## {number}. ")),
            "the page lacks rule {number}"
        );
        let row = section()
            .lines()
            .find(|line| line.starts_with(&format!("| {number} | `src/")));
        let row = row.unwrap_or_else(|| panic!("no file keeps rule {number}"));
        let (_, tests) = row
            .rsplit_once(" | `")
            .unwrap_or_else(|| panic!("no test of rule {number}"));
        assert!(tests.matches("`, `").count() > 1, "{row}");
    }
}

#[test]
fn every_file_and_every_test_of_a_safety_rule_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts = texts();
    let (mut paths, mut claims) = (0, 0);
    for name in section().split('`').skip(1).step_by(2) {
        if name.starts_with("src/") || name.starts_with("tests/") {
            paths += 1;
            assert!(root.join(name).exists(), "there is no {name}");
        } else {
            claims += 1;
            let function = format!("fn {name}(");
            assert!(
                texts.iter().any(|(_, text)| text.contains(&function)),
                "there is no test {name}"
            );
        }
    }
    assert!(
        paths > 20 && claims > 60,
        "{paths} files and {claims} tests were found in the section"
    );
}

/// A filter that matches no test runs none, and that passes.
#[test]
fn every_test_that_the_makefile_or_the_guest_selects_or_skips_exists() {
    let scripts = [
        include_str!("../../Makefile"),
        include_str!("../testbed/guest/inside.sh"),
    ];
    let texts = texts();
    let mut filters = Vec::new();
    for line in scripts.into_iter().flat_map(str::lines) {
        let words: Vec<&str> = line.split_whitespace().collect();
        filters.extend(words.windows(2).filter(|pair| pair[0] == "--skip").map(|pair| pair[1]));
        filters.extend(
            words
                .windows(3)
                .filter(|three| three[0] == "--test")
                .map(|three| three[2]),
        );
    }
    filters.retain(|filter| filter.starts_with(|letter: char| letter.is_ascii_lowercase()));
    for filter in &filters {
        let filter = filter.trim_end_matches([')', '"']);
        let (module, name) = filter.rsplit_once("::").unwrap_or(("", filter));
        let module = module.rsplit("::").next().unwrap();
        let is_in = |file: &Path| file.with_extension("").iter().any(|part| part == module);
        let declares = |line: &str| {
            let line = line.trim_start().trim_start_matches("pub ");
            let function = line.trim_start_matches("async ").strip_prefix("fn ");
            match name {
                "" => line.starts_with(&format!("mod {module}")) || line.contains(&format!("{module}::")),
                _ => function.is_some_and(|declared| declared.contains(name)),
            }
        };
        let exists = |(file, text): &(PathBuf, String)| {
            (module.is_empty() || name.is_empty() || is_in(file)) && text.lines().any(declares)
        };
        assert!(texts.iter().any(exists), "no test is called {filter}");
    }
    assert!(filters.len() > 10, "{filters:?}");
}
