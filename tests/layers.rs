//! Modules use only those below them, and no two files use each other.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use petgraph::{algo::tarjan_scc, prelude::DiGraphMap};
use quote::ToTokens as _;
use syn::{
    Attribute, ItemImpl, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

/// From the lowest to the highest. A module may use those before it.
const LAYERS: [&str; 31] = [
    // Tools that know nothing of pods.
    "clock",
    "histogram",
    "words",
    "why",
    "memory",
    "tasks",
    "trace_context",
    // Pure: the vocabulary of every module.
    "model",
    "object_name",
    // Why an object still exists, as typed causes.
    "explanation",
    // What the node offers.
    "node",
    // Progress of a teardown.
    "trace_recorder",
    // What survives a crash.
    "journal",
    // One pod's termination: it has traits for what stands above it.
    "teardown",
    // What the API server offers.
    "api",
    "engine",
    "outside",
    "counters",
    "events",
    "otlp",
    // Whether the agent may act.
    "handover",
    // All pods of the node.
    "watch",
    "workers",
    "observe",
    "housekeeping",
    // The cluster's owner references.
    "collector",
    // Flags, files, verbs, and what puts all of it together.
    "cli",
    "config",
    "ops",
    "cluster_view",
    "agent",
];

/// A module with a file of its own: its path, such as `["node", "cri"]`.
type Module = Vec<String>;

/// The paths that a file names, as absolute paths.
struct Names<'a> {
    modules: &'a BTreeSet<Module>,
    /// The file's module, and the modules inside the file that lead here.
    at: Module,
    /// `use` declarations that are private, and paths in the code.
    used: BTreeSet<Module>,
    /// By the name in this module: what a `pub use` makes known here.
    reexported: BTreeMap<Module, Module>,
}

impl Names<'_> {
    /// `None` for a path into another crate.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let supers = path.iter().take_while(|name| *name == "super").count();
        let (parent, rest) = match path.first()?.as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (&self.at[..], &path[1..]),
            "super" => (&self.at[..self.at.len() - supers], &path[supers..]),
            child => {
                let child = [&self.at[..], &[child.to_owned()]].concat();
                (&self.at[..], self.modules.contains(&child).then_some(path)?)
            }
        };
        Some([parent, rest].concat())
    }

    fn add_use(&mut self, tree: &UseTree, prefix: &[String], is_public: bool) {
        let joined = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        let (path, name) = match tree {
            UseTree::Path(path) => return self.add_use(&path.tree, &joined(&path.ident), is_public),
            UseTree::Group(group) => {
                return group
                    .items
                    .iter()
                    .for_each(|item| self.add_use(item, prefix, is_public));
            }
            UseTree::Name(name) if name.ident == "self" => {
                (prefix.to_vec(), prefix.last().cloned().unwrap_or_default())
            }
            UseTree::Name(name) => (joined(&name.ident), name.ident.to_string()),
            UseTree::Rename(rename) => (joined(&rename.ident), rename.rename.to_string()),
            UseTree::Glob(_) => (prefix.to_vec(), String::new()),
        };
        let Some(path) = self.absolute(&path) else { return };
        if is_public {
            self.reexported.insert([&self.at[..], &[name]].concat(), path);
        } else {
            self.used.insert(path);
        }
    }

    fn add_path(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.used.extend(self.absolute(path));
        }
    }
}

/// Tests may use whatever helps them.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |it: &Attribute| it.path().is_ident("cfg") && it.to_token_stream().to_string().contains("(test)");
    attributes.iter().any(is_test)
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.content.is_some() && !is_for_tests(&module.attrs) {
            self.at.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.at.pop();
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.add_use(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add_path(&names);
        visit::visit_path(self, path);
    }

    /// What stands in a call of a macro is not parsed.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        let text = call.tokens.to_string().replace(" :: ", "::");
        for word in text.split(|letter: char| !(letter.is_alphanumeric() || "_:".contains(letter))) {
            self.add_path(&word.split("::").map(str::to_owned).collect::<Vec<_>>());
        }
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// Which module with a file names which others, re-exports followed to the file that declares the name.
fn arrows() -> Arrows {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let mut sources = BTreeMap::new();
    for file in all {
        let inside = file.strip_prefix(&src).unwrap().with_extension("");
        let module: Module = inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        let is_root = matches!(&*module[0], "lib" | "main");
        if !is_root && !module.iter().any(|part| part == "tests" || part.ends_with("_tests")) {
            sources.insert(module, syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap());
        }
    }
    let modules: BTreeSet<Module> = sources.keys().cloned().collect();
    assert!(modules.len() > 300, "sources are not found: {}", modules.len());

    let (mut used, mut reexported) = (BTreeMap::new(), BTreeMap::new());
    for (module, source) in &sources {
        let mut names = Names {
            modules: &modules,
            at: module.clone(),
            used: BTreeSet::new(),
            reexported: BTreeMap::new(),
        };
        names.visit_file(source);
        used.insert(module.clone(), names.used);
        reexported.extend(names.reexported);
    }
    let declared_in = |path: &Module| -> Option<Module> {
        let mut path = path.clone();
        while let Some((length, target)) = (1..=path.len()).rev().find_map(|length| {
            let target = reexported.get(&path[..length])?;
            // A file and a function may have one name; only the function ends a path.
            let is_file = length < path.len() && modules.contains(&path[..length]);
            (!is_file && !target.starts_with(&path[..length])).then_some((length, target))
        }) {
            path = [&target[..], &path[length..]].concat();
        }
        let prefixes = (1..=path.len()).rev().map(|length| path[..length].to_vec());
        prefixes.into_iter().find(|prefix| modules.contains(prefix))
    };
    let arrows = used.into_iter().map(|(module, paths)| {
        let mut others: BTreeSet<Module> = paths.iter().filter_map(declared_in).collect();
        others.remove(&module);
        (module, others)
    });
    arrows.collect()
}

#[test]
fn a_module_uses_only_those_below_it() {
    let place = |module: &str| LAYERS.iter().position(|it| *it == module);
    let mut wrong = Vec::new();
    for (module, others) in arrows() {
        let own = place(&module[0]).unwrap_or_else(|| panic!("{} has no layer: add it to this test", module[0]));
        for other in others
            .iter()
            .filter(|other| place(&other[0]).is_some_and(|other| other > own))
        {
            wrong.push(format!(
                "{} uses {}, which is above it",
                module.join("::"),
                other.join("::")
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let arrows = arrows();
    let mut graph: DiGraphMap<&Module, ()> = DiGraphMap::new();
    for (module, others) in &arrows {
        graph.extend(others.iter().map(|other| (module, other)));
    }
    let circles = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
    let circles: Vec<String> = circles
        .map(|files| {
            files
                .iter()
                .map(|module| module.join("::"))
                .collect::<Vec<_>>()
                .join(", ")
        })
        .collect();
    assert!(circles.is_empty(), "{circles:#?}");
}
