//! Texts of a picture.

use super::object::{Appearance, Picture, Pictured, Presence};
use crate::{
    collector::names::{escape_control_chars, kind, namespaced_name},
    words::{self, format_count, plural},
};

/// Characters per line of a box.
pub const WIDTH: usize = 42;
/// Maximum number of lines of a decision.
const LINES: usize = 4;

/// All looks, in the order of the legend.
pub const APPEARANCES: [Appearance; 6] = [
    Appearance::Plain,
    Appearance::Waiting,
    Appearance::Blocked,
    Appearance::Deleting,
    Appearance::Virtual,
    Appearance::Absent,
];

/// Placeholder for objects that are not in the picture.
pub struct Placeholder {
    /// Their number and role.
    pub text: String,
    /// Whether one of them has `blockOwnerDeletion`.
    pub blocking: bool,
    /// Whether the owner waits for one of them.
    pub holds_up: bool,
}

/// Formats a number with commas between thousands.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn truncate_to_width(text: &str) -> String {
    words::truncate_middle(text, WIDTH)
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').map(truncate_to_width) {
        let fits = |line: &&mut String| line.chars().count() + 1 + word.chars().count() <= WIDTH;
        match lines.last_mut().filter(fits) {
            Some(line) => {
                line.push(' ');
                line.push_str(&word);
            }
            None => lines.push(word),
        }
    }
    if lines.len() > LINES {
        lines.truncate(LINES);
        lines[LINES - 1].push_str(" …");
    }
    lines
}

// === impl Appearance ===

impl Appearance {
    /// Text in the legend.
    pub fn label(self) -> &'static str {
        match self {
            Self::Waiting => "in foreground deletion",
            Self::Blocked => "kept, an owner is unclear",
            Self::Virtual => "not known to be there",
            Self::Absent => "not there",
            Self::Deleting => "being deleted, or will be",
            Self::Plain => "stays",
        }
    }

    /// Fill and border color of its box.
    pub fn colors(self) -> (&'static str, &'static str) {
        match self {
            Self::Waiting => ("#ffe08a", "#a86b00"),
            Self::Blocked => ("#f6d0ea", "#a3277f"),
            Self::Virtual => ("#ffffff", "#7a5cc4"),
            Self::Absent => ("#e3e3e3", "#777777"),
            Self::Deleting => ("#cfe0fb", "#2b5fb0"),
            Self::Plain => ("#f4f8f2", "#6b8f5e"),
        }
    }

    /// Whether its box has a dashed border: it may not exist.
    pub fn is_dashed(self) -> bool {
        match self {
            Self::Virtual | Self::Absent => true,
            Self::Waiting | Self::Blocked | Self::Deleting | Self::Plain => false,
        }
    }
}

// === impl Picture ===

impl Picture {
    /// Title of the picture.
    pub fn title(&self) -> String {
        let title = match &self.around {
            Some(uid) => format!("Owners and dependents around UID {}", truncate_to_width(uid)),
            None => "Active objects in the collector's graph".to_owned(),
        };
        let shown = format_count(self.objects.len() as u64, "object");
        match (&self.around, self.left_out) {
            (_, 0) => format!("{title}: {shown}"),
            (Some(_), more) => format!("{title}: {shown}, {} references lead out of the picture", number(more)),
            (None, more) => format!("{title}: {shown}, {} more are not in the picture", number(more)),
        }
    }
}

// === impl Pictured ===

impl Pictured {
    /// Headline: its kind.
    pub fn headline(&self) -> String {
        truncate_to_width(&kind(&self.group, &self.kind))
    }

    /// Tooltip: its UID.
    pub fn tooltip(&self) -> String {
        format!("UID {}", escape_control_chars(&self.uid))
    }

    /// Name, state and decision, in lines.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![truncate_to_width(&namespaced_name(&self.namespace, &self.name))];
        lines.extend(self.condition());
        lines.extend(self.decision.iter().flat_map(|decision| wrapped(decision)));
        lines
    }

    fn condition(&self) -> Option<String> {
        let mut words = Vec::new();
        words.extend(match self.state {
            Presence::Observed => None,
            Presence::Virtual => Some("virtual: named, never observed"),
            Presence::Absent => Some("absent"),
            Presence::Unconfirmed => Some("unconfirmed: the last list does not show it"),
        });
        words.extend(self.deleting.then_some("being deleted"));
        words.extend(self.gc_finalizers.iter().map(String::as_str));
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Placeholder for its owners outside of the picture.
    pub fn owners_placeholder(&self) -> Option<Placeholder> {
        (self.more_owners > 0).then(|| Placeholder {
            text: counted_more(self.more_owners, "owner"),
            blocking: false,
            holds_up: false,
        })
    }

    /// Placeholder for its dependents outside of the picture.
    pub fn dependents_placeholder(&self) -> Option<Placeholder> {
        let text = counted_more(self.more_dependents, "dependent");
        let blocking = self.more_blocking > 0;
        (self.more_dependents > 0).then(|| Placeholder {
            text: match self.more_blocking {
                0 => text,
                all if all == self.more_dependents => format!("{text}, blocking"),
                some => format!("{text}, {} blocking", number(some)),
            },
            blocking,
            holds_up: blocking && self.deleting && self.gc_finalizers.iter().any(|name| name == "foregroundDeletion"),
        })
    }
}

fn counted_more(count: u64, thing: &str) -> String {
    format!("… and {} more {}", number(count), plural(count, thing))
}
