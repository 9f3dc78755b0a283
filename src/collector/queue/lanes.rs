//! Work items that are ready, in one lane per kind. A lane with slow or refused requests does not delay other lanes.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::collector::{graph::Hint, kinds::KindId};

/// A slower answer counts as slow. It says nothing about the load of the API server.
pub const SLOW: Duration = Duration::from_secs(2);
/// Maximum number of requests in flight of a lane that is slow, or whose last request failed.
const FEW: usize = 4;
/// The same for a lane without an answer yet.
const FIRST: usize = 2;
/// This many refusals in a row throttle the lane; fewer may concern single objects.
const IN_A_ROW: u32 = 3;

/// GETs or writes of one kind. An admission webhook that refuses writes does not refuse GETs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The kind.
    pub kind: KindId,
    /// GETs, not writes.
    pub asks: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lines: HashMap<Lane, Line>,
    /// Lanes with items, in round-robin order.
    turns: VecDeque<Lane>,
    /// Lanes with requests in flight. There may be tens of thousands of others.
    busy: Vec<Lane>,
    len: usize,
}

#[derive(Debug, Default)]
struct Line {
    hints: VecDeque<Hint>,
    /// Start times of requests in flight, the oldest first.
    under_way: VecDeque<Instant>,
    /// The last answer, if there was one.
    last: Option<Answer>,
    /// Refusals in a row.
    refused: u32,
    /// End of the pause that the server asked for.
    rests: Option<Instant>,
}

/// What an answer says about its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A fast answer.
    Soon,
    /// A slow answer, or a failure other than a refusal for overload.
    LateOrFailed,
    /// The server is overloaded and asks for a pause until then.
    Refused(Instant),
}

// === impl Lanes ===

impl Lanes {
    /// Number of items.
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

    /// The next item. Lanes are served round-robin; lanes with `many` requests in flight come after all others. A slow
    /// lane has at most [`FEW`] in flight, and all slow lanes together at most `many`.
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

    /// The first item of a lane that is not in the round-robin order at the moment.
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

    /// Whether the lane pauses.
    pub fn rests(&self, lane: Lane, now: Instant) -> bool {
        self.lines.get(&lane).is_some_and(|line| line.rests(now))
    }

    /// When a paused lane resumes, or a request becomes slow and so frees a slot.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let rests = self.turns.iter().filter_map(|lane| self.lines.get(lane)?.rests);
        let fast = self.busy().filter(|line| !line.is_slow(now));
        let slow = fast.filter_map(|line| Some(*line.under_way.front()? + SLOW));
        let slow = slow.min().filter(|_| self.len > 0);
        rests.chain(slow).min()
    }

    /// Number of requests in flight of slow lanes.
    pub fn slow_under_way(&self, now: Instant) -> usize {
        let slow = self.busy().filter(|line| line.is_slow(now));
        slow.map(|line| line.under_way.len()).sum()
    }

    fn busy(&self) -> impl Iterator<Item = &Line> {
        self.busy.iter().filter_map(|lane| self.lines.get(lane))
    }

    /// Records the start of a request.
    pub fn began(&mut self, lane: Lane, now: Instant) {
        let line = self.lines.entry(lane).or_default();
        if line.under_way.is_empty() {
            self.busy.push(lane);
        }
        line.under_way.push_back(now);
    }

    /// Records the answer to the request that started at `begun`.
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

    /// Removes the state of an idle lane, and frees the memory of an empty one.
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

    /// Whether its requests are slow or fail.
    fn is_slow(&self, now: Instant) -> bool {
        let is_late = self.under_way.front().is_some_and(|&begun| now >= begun + SLOW);
        is_late || self.last == Some(Answer::LateOrFailed)
    }

    /// Whether it may have no more requests in flight.
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
