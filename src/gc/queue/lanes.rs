//! What may be begun, in a lane for each kind: one whose requests take long or are refused holds up no other.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use crate::gc::{graph::Hint, kinds::KindId};

/// So many refusals of a lane without an answer of another kind in between are not those of single objects.
const IN_A_ROW: u32 = 3;

/// Questions and writes of a kind: a webhook that refuses the ones does not refuse the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The kind of what is asked for or written.
    pub kind: KindId,
    /// It is only asked.
    pub asks: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lines: HashMap<Lane, Line>,
    /// Lanes in which something is ready, in the order of their turns.
    turns: VecDeque<Lane>,
    len: usize,
}

#[derive(Debug, Default)]
struct Line {
    hints: VecDeque<Hint>,
    under_way: usize,
    /// In a row.
    refused: u32,
    /// The server wants to be left alone with these until then.
    rests: Option<Instant>,
}

// === impl Lanes ===

impl Lanes {
    /// How many hints there are.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push_back(&mut self, lane: Lane, hint: Hint) {
        self.line_for_one_more(lane).push_back(hint);
    }

    pub fn push_front(&mut self, lane: Lane, hint: Hint) {
        self.line_for_one_more(lane).push_front(hint);
    }

    fn line_for_one_more(&mut self, lane: Lane) -> &mut VecDeque<Hint> {
        self.len += 1;
        let hints = &mut self.lines.entry(lane).or_default().hints;
        if hints.is_empty() {
            self.turns.push_back(lane);
        }
        hints
    }

    /// The next one: lanes take turns, and those of which so many are under way already come after all others.
    pub fn pop_front(&mut self, now: Instant, many: usize) -> Option<Hint> {
        let mut crowded = None;
        for _ in 0..self.turns.len() {
            let lane = self.turns.pop_front()?;
            let line = self.lines.get(&lane)?;
            let (rests, is_crowded) = (line.rests(now), line.under_way >= many);
            if !rests && !is_crowded {
                return self.take(lane);
            }
            self.turns.push_back(lane);
            if !rests && crowded.is_none() {
                crowded = Some(lane);
            }
        }
        let lane = crowded?;
        self.turns.retain(|other| *other != lane);
        self.take(lane)
    }

    /// The first one of a lane that was taken out of the turns.
    fn take(&mut self, lane: Lane) -> Option<Hint> {
        let line = self.lines.get_mut(&lane)?;
        let hint = line.hints.pop_front()?;
        self.len -= 1;
        if line.hints.is_empty() {
            self.tidy(lane);
        } else {
            self.turns.push_back(lane);
        }
        Some(hint)
    }

    /// Whether the server wants to be left alone with these.
    pub fn rests(&self, lane: Lane, now: Instant) -> bool {
        self.lines.get(&lane).is_some_and(|line| line.rests(now))
    }

    /// When something that rests is to be begun.
    pub fn next_due(&self) -> Option<Instant> {
        let lines = self.turns.iter().filter_map(|lane| self.lines.get(lane));
        lines.filter_map(|line| line.rests).min()
    }

    /// A request of this lane is sent.
    pub fn began(&mut self, lane: Lane) {
        self.lines.entry(lane).or_default().under_way += 1;
    }

    /// It has come to its end; `refused` if the server has too much to do with these, and until when.
    pub fn ended(&mut self, lane: Lane, refused: Option<Instant>) {
        let Some(line) = self.lines.get_mut(&lane) else {
            return;
        };
        line.under_way = line.under_way.saturating_sub(1);
        if let Some(until) = refused {
            line.refused += 1;
            if line.refused >= IN_A_ROW {
                line.rests = Some(line.rests.map_or(until, |rests| rests.max(until)));
            }
        } else {
            (line.refused, line.rests) = (0, None);
        }
        self.tidy(lane);
    }

    /// Of a lane in which nothing happens nothing is kept; nor are many places.
    fn tidy(&mut self, lane: Lane) {
        let Some(line) = self.lines.get_mut(&lane).filter(|line| line.hints.is_empty()) else {
            return;
        };
        line.hints = VecDeque::new();
        if line.under_way == 0 && line.refused == 0 {
            self.lines.remove(&lane);
        }
    }
}

// === impl Line ===

impl Line {
    fn rests(&self, now: Instant) -> bool {
        self.rests.is_some_and(|rests| now < rests)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::gc::graph::{Graph, Observed};

    fn lanes() -> (Lanes, [Lane; 2], Vec<Hint>) {
        let mut graph = Graph::default();
        let mut lane = |kind: &str| Lane {
            kind: graph.kinds.id("", kind).unwrap(),
            asks: false,
        };
        let both = [lane("Slow"), lane("Other")];
        let mut nodes = Vec::new();
        for number in 0..8 {
            let object = Observed {
                uid: number.to_string(),
                deleting: true,
                ..Observed::default()
            };
            graph.observe(both[0].kind, &object);
            nodes.push(Hint::Decide(graph.with_uid(&object.uid)[0]));
        }
        (Lanes::default(), both, nodes)
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_take_turns_and_one_with_many_under_way_comes_after_all_others() {
        let now = Instant::now();
        let (mut lanes, [slow, other], hints) = lanes();
        for &hint in &hints[..4] {
            lanes.push_back(slow, hint);
        }
        for &hint in &hints[4..] {
            lanes.push_back(other, hint);
        }
        assert_eq!(lanes.pop_front(now, 2), Some(hints[0]));
        assert_eq!(lanes.pop_front(now, 2), Some(hints[4]));
        for _ in 0..2 {
            lanes.began(slow);
        }
        assert_eq!(lanes.pop_front(now, 2), Some(hints[5]));
        assert_eq!(lanes.pop_front(now, 2), Some(hints[6]));
        lanes.ended(slow, None);
        assert_eq!(lanes.pop_front(now, 2), Some(hints[1]));
        assert_eq!(lanes.pop_front(now, 2), Some(hints[7]));
        lanes.began(slow);
        assert_eq!(lanes.pop_front(now, 2), Some(hints[2]), "nobody else has anything");
        assert_eq!(lanes.pop_front(now, 2), Some(hints[3]));
        assert_eq!((lanes.pop_front(now, 2), lanes.len()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_rests_after_some_refusals_in_a_row_and_not_after_those_of_one_object_among_others() {
        let now = Instant::now();
        let until = now + Duration::from_secs(300);
        let (mut lanes, [slow, _], hints) = lanes();
        lanes.push_back(slow, hints[0]);
        for refused in [Some(until), Some(until), None, Some(until), Some(until)] {
            lanes.began(slow);
            lanes.ended(slow, refused);
        }
        assert!(!lanes.rests(slow, now));
        lanes.began(slow);
        lanes.ended(slow, Some(until));
        assert!(lanes.rests(slow, now));
        assert_eq!((lanes.pop_front(now, 2), lanes.next_due()), (None, Some(until)));
        assert_eq!(lanes.pop_front(until, 2), Some(hints[0]));
        lanes.began(slow);
        lanes.ended(slow, None);
        assert!(lanes.lines.is_empty());
    }
}
