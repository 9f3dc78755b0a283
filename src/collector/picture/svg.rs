//! A picture in SVG, for a browser.

mod layout;

use std::fmt::Write as _;

use dagre::Point;

use self::layout::{Area, Arrow, Layout, MARGIN};
use super::{
    Appearance, Picture, Pictured, PicturedReference,
    text::{APPEARANCES, Placeholder},
};
use crate::words::escape_xml;

/// Width of a character; the font is monospaced.
const LETTER: f64 = 7.3;
/// Height of a line.
const LINE: f64 = 16.0;
/// Space between text and border.
const PADDING: f64 = 10.0;
/// Height of title and legend.
const HEAD: f64 = 100.0;
/// The legend needs this width.
const LEAST_WIDTH: f64 = 1190.0;

const STYLE: &str = "text { font-family: monospace; font-size: 12px; fill: #222 } \
    .t { font-size: 15px; font-weight: bold } .k { font-weight: bold } .m { fill: #555; font-style: italic } \
    path { fill: none; stroke: #555; stroke-width: 1.3 } .n { stroke-dasharray: 5 4 } \
    .h { stroke: #d0021b; stroke-width: 2.6 }";

/// A box with text: an object, or a placeholder for several.
struct Block {
    headline: Option<String>,
    lines: Vec<String>,
    look: Option<Appearance>,
    tooltip: String,
}

/// Renders SVG. References point from dependents to owners, which are on the left.
pub fn svg(picture: &Picture) -> String {
    let (blocks, arrows) = parts(picture);
    let sizes: Vec<(f64, f64)> = blocks.iter().map(Block::size).collect();
    let layout = Layout::compute(&sizes, &arrows);
    let mut body = String::new();
    let mut corner = Point::new(LEAST_WIDTH, HEAD);
    for (index, arrow) in arrows.iter().enumerate() {
        let points = layout.points(index, arrow);
        for point in &points {
            grow(&mut corner, point.x, point.y + HEAD);
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            body,
            r#"<path class="{0}" marker-end="url(#{0})" d="{1}"/>"#,
            arrow.class,
            curve(&points)
        );
    }
    for (index, block) in blocks.iter().enumerate() {
        let Some(area) = layout.area(index) else {
            continue;
        };
        grow(&mut corner, area.right(), area.bottom() + HEAD);
        block.draw(&mut body, area);
    }
    let (width, height) = (corner.x + MARGIN, corner.y + MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
        viewBox=\"0 0 {width:.0} {height:.0}\">\n<style>{STYLE}</style>\n<defs>"
    );
    for (class, color) in [("b", "#555"), ("n", "#555"), ("h", "#d0021b")] {
        let _ = write!(
            out,
            r#"<marker id="{class}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="10" markerHeight="10" markerUnits="userSpaceOnUse" orient="auto"><polygon points="0,0 10,5 0,10" fill="{color}"/></marker>"#
        );
    }
    out.push_str("</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    head(&mut out, &picture.title());
    out.push_str(&body);
    out.push_str("</svg>\n");
    out
}

fn parts(picture: &Picture) -> (Vec<Block>, Vec<Arrow>) {
    let object = |object: &Pictured| Block {
        headline: Some(object.headline()),
        lines: object.lines(),
        look: Some(object.class),
        tooltip: object.tooltip(),
    };
    let mut blocks: Vec<Block> = picture.objects.iter().map(object).collect();
    let reference = |reference: &PicturedReference| Arrow {
        from: reference.dependent,
        to: reference.owner,
        class: class(reference.blocking, reference.holds_up),
    };
    let mut arrows: Vec<Arrow> = picture.references.iter().map(reference).collect();
    for (index, object) in picture.objects.iter().enumerate() {
        if let Some(more) = object.owners_placeholder() {
            let (to, class) = (blocks.len(), class(more.blocking, more.holds_up));
            blocks.push(Block::from_placeholder(more));
            arrows.push(Arrow { from: index, to, class });
        }
        if let Some(more) = object.dependents_placeholder() {
            let (from, class) = (blocks.len(), class(more.blocking, more.holds_up));
            blocks.push(Block::from_placeholder(more));
            arrows.push(Arrow { from, to: index, class });
        }
    }
    (blocks, arrows)
}

fn class(blocking: bool, holds_up: bool) -> &'static str {
    match (blocking, holds_up) {
        (_, true) => "h",
        (true, false) => "b",
        (false, false) => "n",
    }
}

fn grow(corner: &mut Point, x: f64, y: f64) {
    corner.x = corner.x.max(x);
    corner.y = corner.y.max(y);
}

/// The curve is horizontal at every point.
fn curve(points: &[Point]) -> String {
    let mut path = String::new();
    let mut before: Option<&Point> = None;
    for point in points {
        let (x, y) = (point.x, point.y + HEAD);
        let _ = match before {
            None => write!(path, "M{x:.1},{y:.1}"),
            Some(from) => {
                let middle = f64::midpoint(from.x, x);
                write!(
                    path,
                    " C{middle:.1},{:.1} {middle:.1},{y:.1} {x:.1},{y:.1}",
                    from.y + HEAD
                )
            }
        };
        before = Some(point);
    }
    path
}

fn head(out: &mut String, title: &str) {
    let _ = writeln!(
        out,
        r#"<text class="t" x="{MARGIN}" y="30">{}</text>"#,
        escape_xml(title)
    );
    let mut x = MARGIN;
    for look in APPEARANCES {
        swatch(out, x, look);
        x += look.label().len() as f64 * LETTER + 38.0;
    }
    x = MARGIN;
    for (class, text) in [
        ("b", "blocks its owner's foreground deletion"),
        ("n", "does not block"),
        ("h", "holds its owner up now"),
    ] {
        let _ = writeln!(
            out,
            r#"<path class="{class}" marker-end="url(#{class})" d="M{x:.1},82 h40"/><text x="{:.1}" y="86">{text}</text>"#,
            x + 48.0
        );
        x += text.len() as f64 * LETTER + 78.0;
    }
}

fn swatch(out: &mut String, x: f64, look: Appearance) {
    frame(out, x, 48.0, (18.0, 14.0), look);
    let _ = writeln!(out, r#"<text x="{:.1}" y="59">{}</text>"#, x + 24.0, look.label());
}

fn frame(out: &mut String, x: f64, y: f64, (width, height): (f64, f64), look: Appearance) {
    let (inside, line) = look.colors();
    let broken = if look.is_dashed() {
        r#" stroke-dasharray="4 3""#
    } else {
        ""
    };
    let _ = write!(
        out,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="5" fill="{inside}" stroke="{line}" stroke-width="1.5"{broken}/>"#
    );
}

// === impl Block ===

impl Block {
    fn from_placeholder(more: Placeholder) -> Self {
        Self {
            headline: None,
            lines: vec![more.text],
            look: None,
            tooltip: "Not in the picture".to_owned(),
        }
    }

    fn size(&self) -> (f64, f64) {
        let lines = self.headline.iter().chain(&self.lines);
        let (count, width) = lines.fold((0, 0), |(count, width), line| {
            (count + 1, width.max(line.chars().count()))
        });
        (width as f64 * LETTER + 2.0 * PADDING, f64::from(count) * LINE + PADDING)
    }

    fn draw(&self, out: &mut String, area: Area) {
        let (x, y) = (area.left(), area.top() + HEAD);
        let _ = write!(out, "<g><title>{}</title>", escape_xml(&self.tooltip));
        if let Some(look) = self.look {
            frame(out, x, y, area.size, look);
        }
        let class = if self.look.is_none() { "m" } else { "l" };
        let headline = self.headline.iter().map(|line| ("k", line));
        let mut at = y + PADDING / 2.0;
        for (class, line) in headline.chain(self.lines.iter().map(|line| (class, line))) {
            at += LINE;
            let _ = write!(
                out,
                r#"<text class="{class}" x="{:.1}" y="{:.1}">{}</text>"#,
                x + PADDING,
                at - 4.0,
                escape_xml(line)
            );
        }
        out.push_str("</g>\n");
    }
}
