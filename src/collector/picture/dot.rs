//! A picture in DOT, for Graphviz.

use std::fmt::Write as _;

use super::{
    Appearance, Picture,
    text::{APPEARANCES, Placeholder},
};

/// Renders DOT. References point from dependents to owners, which are on the left.
pub fn dot(picture: &Picture) -> String {
    let mut out = String::from("digraph owners {\n  rankdir=RL; labelloc=t; fontname=\"Helvetica\";\n");
    out.push_str("  node [shape=box, fontname=\"Helvetica\", fontsize=11];\n  edge [color=\"#555555\"];\n");
    // Writing to a String cannot fail.
    let _ = writeln!(out, "  label={};", quoted(&picture.title()));
    for (index, object) in picture.objects.iter().enumerate() {
        let mut lines = vec![object.headline()];
        lines.extend(object.lines());
        let node = format!("n{index}");
        let tooltip = format!(", tooltip={}", quoted(&object.tooltip()));
        write_box(&mut out, "  ", &node, &lines, object.class, &tooltip);
        placeholder(&mut out, &node, "owners", object.owners_placeholder().as_ref());
        placeholder(&mut out, &node, "dependents", object.dependents_placeholder().as_ref());
    }
    for reference in &picture.references {
        let style = edge(reference.blocking, reference.holds_up);
        let _ = writeln!(out, "  n{} -> n{} [{style}];", reference.dependent, reference.owner);
    }
    legend(&mut out);
    out.push_str("}\n");
    out
}

fn write_box(out: &mut String, indent: &str, node: &str, lines: &[String], look: Appearance, tooltip: &str) {
    let (inside, line) = look.colors();
    let style = if look.is_dashed() {
        "rounded,filled,dashed"
    } else {
        "rounded,filled"
    };
    let _ = writeln!(
        out,
        "{indent}{node} [label={}, style=\"{style}\", fillcolor=\"{inside}\", color=\"{line}\"{tooltip}];",
        quoted(&lines.join("\n"))
    );
}

fn placeholder(out: &mut String, node: &str, what: &str, more: Option<&Placeholder>) {
    let Some(more) = more else {
        return;
    };
    let style = edge(more.blocking, more.holds_up);
    let _ = writeln!(
        out,
        "  {node}_{what} [label={}, shape=plaintext, fontcolor=\"#555555\"];",
        quoted(&more.text)
    );
    let _ = match what {
        "owners" => writeln!(out, "  {node} -> {node}_{what} [{style}];"),
        _ => writeln!(out, "  {node}_{what} -> {node} [{style}];"),
    };
}

fn edge(blocking: bool, holds_up: bool) -> &'static str {
    match (blocking, holds_up) {
        (_, true) => "style=bold, color=\"#d0021b\", tooltip=\"holds up the deletion of the owner\"",
        (true, false) => "style=solid, tooltip=\"blocking\"",
        (false, false) => "style=dashed, arrowhead=vee, tooltip=\"not blocking\"",
    }
}

fn legend(out: &mut String) {
    out.push_str("  subgraph cluster_legend {\n    label=\"Legend\"; color=\"#cccccc\";\n");
    for (index, look) in APPEARANCES.into_iter().enumerate() {
        let lines = [look.label().to_owned()];
        write_box(out, "    ", &format!("l{index}"), &lines, look, "");
    }
    let edges = [
        ("a dependent that blocks", true, false),
        ("one that does not block", false, false),
        ("one that holds its owner up", true, true),
    ];
    out.push_str("    o [label=\"an owner\", shape=plaintext];\n");
    for (index, (text, blocking, holds_up)) in edges.into_iter().enumerate() {
        let style = edge(blocking, holds_up);
        let _ = writeln!(
            out,
            "    e{index} [label=\"{text}\", shape=plaintext];\n    e{index} -> o [{style}];"
        );
    }
    out.push_str("  }\n");
}

/// A quoted DOT string. Only line breaks keep a meaning.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
