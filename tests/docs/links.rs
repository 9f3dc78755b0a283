//! Links and anchors lead somewhere, and each page says for whom it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::pages::{self, Page};

/// Anchors of a page: GitHub's of its headings, and explicit ones.
fn anchors(page: &Page) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in page.prose() {
        if line.starts_with('#') {
            let title = line.trim_start_matches('#').trim();
            let kept = title
                .to_lowercase()
                .chars()
                .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter))
                .map(|letter| if letter == ' ' { '-' } else { letter })
                .collect();
            anchors.insert(kept);
        }
        let ids = line
            .split("<a id=\"")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once('"')?.0));
        anchors.extend(ids.map(str::to_owned));
    }
    anchors
}

/// Targets of links, with their line.
fn links(page: &Page) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in page.prose() {
        // Inline code has no links.
        let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once(')')?.0));
        links.extend(targets.map(|target| (number, target.to_owned())));
    }
    links
}

/// Resolves `..` without the file system.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path {
        match part.to_str() {
            Some("..") => drop(normal.pop()),
            Some(".") => {}
            _ => normal.push(part),
        }
    }
    normal
}

#[test]
fn every_relative_link_and_anchor_on_the_pages_exists() {
    let pages = pages::all();
    let anchors: BTreeMap<&Path, _> = pages.iter().map(|page| (&*page.path, anchors(page))).collect();
    let (mut wrong, mut found) = (Vec::new(), 0);
    for page in &pages {
        for (line, target) in links(page) {
            if target.contains("://") {
                continue;
            }
            found += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = match file {
                "" => page.path.clone(),
                file => normal(&page.path.parent().unwrap_or(Path::new("")).join(file)),
            };
            let exists = pages::root().join(&path).exists();
            if !exists || !(anchor.is_empty() || anchors.get(&*path).is_some_and(|all| all.contains(anchor))) {
                wrong.push(format!("{}:{line}: {target}", page.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(found > 100, "{found} links were found");
}

#[test]
fn every_page_is_in_the_index_and_says_for_whom_it_is() {
    let pages = pages::all();
    let index = pages
        .iter()
        .find(|page| page.path == Path::new("docs/README.md"))
        .unwrap();
    let linked: BTreeSet<PathBuf> = links(index)
        .into_iter()
        .map(|(_, target)| normal(&Path::new("docs").join(target.split('#').next().unwrap())))
        .collect();
    for page in &pages {
        if page.path == Path::new("CONTRIBUTING.md") {
            continue;
        }
        let at = page.path.display();
        let mut lines = page
            .text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("<!--"));
        assert!(
            lines.next().is_some_and(|line| line.starts_with("# ")),
            "{at}: no title"
        );
        assert!(
            lines.next().is_some_and(|line| line.starts_with("For ")),
            "{at}: for whom?"
        );
        let is_entry = page.path.ends_with("README.md");
        assert!(is_entry || linked.contains(&page.path), "{at} is not in docs/README.md");
    }
}

#[test]
fn each_schema_of_an_answer_is_on_the_page_of_the_admin_api() {
    let reference = pages::root().join("docs/reference");
    let page = fs::read_to_string(reference.join("admin-api.md")).unwrap();
    for entry in fs::read_dir(reference.join("schema")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(page.contains(&format!("(schema/{name})")), "{name}");
    }
}
