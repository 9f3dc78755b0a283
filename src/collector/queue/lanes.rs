//! What may be begun, in a lane for each kind: one whose requests take long or are refused holds up no other.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::collector::{graph::Hint, kinds::KindId};

/// An answer that takes longer is slow, and shows nothing of how much the server as a whole can do.
pub const SLOW: Duration = Duration::from_secs(2);
/// Maximum number of requests in flight of a lane that is slow, or whose last request failed.
const FEW: usize = 4;
/// The same of a lane that has no answer yet.
const FIRST: usize = 2;
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
    /// Lanes of which requests are under way: there may be tens of thousands of others.
    busy: Vec<Lane>,
    len: usize,
}

#[derive(Debug, Default)]
struct Line {
    hints: VecDeque<Hint>,
    /// When each request began that is under way, the oldest first.
    under_way: VecDeque<Instant>,
    /// How the last request fared; nothing before the first answer.
    last: Option<Answer>,
    /// In a row.
    refused: u32,
    /// The server wants to be left alone with these until then.
    rests: Option<Instant>,
}

/// How a request fared, as far as it shows how the others of its lane will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was answered soon.
    Soon,
    /// It was answered late, or failed for another reason than that the server has too much to do.
    LateOrFailed,
    /// The server has too much to do with these, and wants to be left alone until then.
    Refused(Instant),
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

    /// The next hint. Lanes take turns; lanes with `many` requests in flight come after all others. A slow lane has at most
    /// [`FEW`] in flight, and all slow lanes together at most `many`.
    pub fn pop_front(&mut self, now: Instant, many: usize) -> Option<Hint> {
        let mut crowded = None;
        let slow = self.slow_under_way(now);
        for _ in 0..self.turns.len() {
            let lane = self.turns.pop_front()?;
            let line = self.lines.get(&lane)?;
            let is_full = line.is_full(now) || (line.is_slow(now) && slow >= many);
            let (rests, is_crowded) = (line.rests(now) || is_full, line.under_way.len() >= many);
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

    /// When something that rests is to be begun, or a request becomes slow and makes room for others.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let rests = self.turns.iter().filter_map(|lane| self.lines.get(lane)?.rests);
        let fast = self.busy().filter(|line| !line.is_slow(now));
        let slow = fast.filter_map(|line| Some(*line.under_way.front()? + SLOW));
        let slow = slow.min().filter(|_| self.len > 0);
        rests.chain(slow).min()
    }

    /// How many requests of slow lanes are under way.
    pub fn slow_under_way(&self, now: Instant) -> usize {
        let slow = self.busy().filter(|line| line.is_slow(now));
        slow.map(|line| line.under_way.len()).sum()
    }

    fn busy(&self) -> impl Iterator<Item = &Line> {
        self.busy.iter().filter_map(|lane| self.lines.get(lane))
    }

    /// A request of this lane is sent.
    pub fn began(&mut self, lane: Lane, now: Instant) {
        let line = self.lines.entry(lane).or_default();
        if line.under_way.is_empty() {
            self.busy.push(lane);
        }
        line.under_way.push_back(now);
    }

    /// It has come to its end, that began then.
    pub fn ended(&mut self, lane: Lane, begun: Instant, answer: Answer) {
        let Some(line) = self.lines.get_mut(&lane) else {
            return;
        };
        if let Some(place) = line.under_way.iter().position(|at| *at == begun) {
            line.under_way.remove(place);
        }
        if line.under_way.is_empty() {
            self.busy.retain(|other| *other != lane);
        }
        line.last = Some(answer);
        if let Answer::Refused(until) = answer {
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
        if line.under_way.is_empty() && line.refused == 0 {
            self.lines.remove(&lane);
        }
    }
}

// === impl Line ===

impl Line {
    fn rests(&self, now: Instant) -> bool {
        self.rests.is_some_and(|rests| now < rests)
    }

    /// Whether requests of it take long or fail, as far as is known.
    fn is_slow(&self, now: Instant) -> bool {
        let is_late = self.under_way.front().is_some_and(|&begun| now >= begun + SLOW);
        is_late || self.last == Some(Answer::LateOrFailed)
    }

    /// Whether no more may be under way. Nothing is known before the first answer.
    fn is_full(&self, now: Instant) -> bool {
        let most = match self.last {
            _ if self.is_slow(now) => FEW,
            None => FIRST,
            Some(_) => return false,
        };
        self.under_way.len() >= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::graph::{Graph, Observed};

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
        for lane in [slow, other] {
            lanes.began(lane, now);
            lanes.ended(lane, now, Answer::Soon);
        }
        for _ in 0..2 {
            lanes.began(slow, now);
        }
        assert_eq!(lanes.pop_front(now, 2), Some(hints[5]));
        assert_eq!(lanes.pop_front(now, 2), Some(hints[6]));
        lanes.ended(slow, now, Answer::Soon);
        assert_eq!(lanes.pop_front(now, 2), Some(hints[1]));
        assert_eq!(lanes.pop_front(now, 2), Some(hints[7]));
        lanes.began(slow, now);
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
        let refused = Answer::Refused(until);
        for answer in [refused, refused, Answer::Soon, refused, refused] {
            lanes.began(slow, now);
            lanes.ended(slow, now, answer);
        }
        assert!(!lanes.rests(slow, now));
        lanes.began(slow, now);
        lanes.ended(slow, now, refused);
        assert!(lanes.rests(slow, now));
        assert_eq!((lanes.pop_front(now, 2), lanes.next_due(now)), (None, Some(until)));
        assert_eq!(lanes.pop_front(until, 2), Some(hints[0]));
        lanes.began(slow, now);
        lanes.ended(slow, now, Answer::Soon);
        assert!(lanes.lines.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_has_two_under_way_at_first_a_few_while_it_is_slow_and_any_number_once_it_answers_soon() {
        let now = Instant::now();
        let (mut lanes, [slow, _], hints) = lanes();
        for &hint in &hints {
            lanes.push_back(slow, hint);
        }
        let begin = |lanes: &mut Lanes, now| {
            let mut begun = 0;
            while lanes.pop_front(now, 8).is_some() {
                lanes.began(slow, now);
                begun += 1;
            }
            begun
        };
        assert_eq!(begin(&mut lanes, now), FIRST);
        assert_eq!((lanes.next_due(now), lanes.slow_under_way(now)), (Some(now + SLOW), 0));
        let late = now + SLOW;
        assert_eq!(lanes.slow_under_way(late), FIRST);
        assert_eq!(begin(&mut lanes, late), FEW - FIRST);
        lanes.ended(slow, now, Answer::LateOrFailed);
        assert_eq!(begin(&mut lanes, late), 1);
        lanes.ended(slow, now, Answer::Soon);
        assert_eq!((begin(&mut lanes, late), lanes.slow_under_way(late)), (3, 0));
    }
}
