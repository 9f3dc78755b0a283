//! Modules know only those below them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// From the lowest to the highest. A module may use those before it.
const LAYERS: [&str; 26] = [
    // Tools that know nothing of pods.
    "clock",
    "words",
    "explanation",
    "memory",
    "tasks",
    // Pure: what every module says of a pod.
    "model",
    "object_name",
    // What the node offers.
    "node",
    // What is told of a teardown while it goes on.
    "trace_recorder",
    "cleanup_throttle",
    // One pod's termination: it has traits for what stands above it.
    "teardown",
    // What the API server offers, and what survives a crash.
    "api",
    "journal",
    "engine",
    "outside",
    "counters",
    "events",
    // Whether the agent may act.
    "handover",
    // All pods of the node.
    "watch",
    "workers",
    "housekeeping",
    // The cluster's owner references.
    "collector",
    // Flags, files, verbs, and what puts all of it together.
    "cli",
    "config",
    "ops",
    "agent",
];

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// The top-level modules that a source text names after `crate::`, alone or in a group.
fn used(text: &str) -> BTreeSet<String> {
    let name = |text: &str| -> String {
        let text = text.trim_start().chars();
        text.take_while(|it| it.is_alphanumeric() || *it == '_').collect()
    };
    let mut found = BTreeSet::new();
    for (_, rest) in text
        .match_indices("crate::")
        .map(|(at, path)| text.split_at(at + path.len()))
    {
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(name(rest));
            continue;
        };
        found.insert(name(group));
        let mut depth = 1;
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => drop(found.insert(name(&group[at + 1..]))),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found.remove("");
    found
}

#[test]
fn a_module_uses_only_those_below_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let place = |module: &str| LAYERS.iter().position(|it| *it == module);
    let mut all = Vec::new();
    files(&src, &mut all);
    assert!(all.len() > 100, "sources are not found: {}", all.len());
    let mut wrong = Vec::new();
    for file in all {
        let inside = file.strip_prefix(&src).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if matches!(module, "lib" | "main") {
            continue;
        }
        let own = place(module).unwrap_or_else(|| panic!("{module} has no layer: add it to this test"));
        let text = fs::read_to_string(&file).unwrap();
        // Tests may use whatever helps them.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        if inside.iter().any(|part| part == "tests") || inside.ends_with("tests.rs") {
            continue;
        }
        for other in used(code) {
            if place(&other).is_some_and(|other| other > own) {
                wrong.push(format!("{} uses {other}, which is above {module}", inside.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn modules_are_found_alone_and_in_groups() {
    let text = "use crate::{\n    a::{B, c::D},\n    e,\n};\nuse crate::f::G; crate::h::i();";
    assert_eq!(used(text).into_iter().collect::<Vec<_>>(), ["a", "e", "f", "h"]);
}
