//! The page on safety names what is there.

use std::{
    fs,
    path::{Path, PathBuf},
};

const PAGE: &str = include_str!("../../docs/safety.md");

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

/// What stands between backticks.
fn named() -> impl Iterator<Item = &'static str> {
    PAGE.split('`').skip(1).step_by(2)
}

#[test]
fn every_file_and_every_test_on_the_page_on_safety_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["src", "tests"] {
        sources(&root.join(dir), &mut files);
    }
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let (mut paths, mut claims) = (0, 0);
    for name in named() {
        if name.starts_with("src/") || name.starts_with("tests/") {
            paths += 1;
            assert!(root.join(name).exists(), "there is no {name}");
        } else if name.matches('_').count() > 2 {
            claims += 1;
            let function = format!("fn {name}(");
            assert!(
                texts.iter().any(|text| text.contains(&function)),
                "there is no test {name}"
            );
        }
    }
    assert!(
        paths > 20 && claims > 30,
        "{paths} files and {claims} tests were found on the page"
    );
}
