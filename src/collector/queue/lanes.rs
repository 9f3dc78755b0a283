//! Work items that are ready, in one lane per kind. A lane with slow or refused requests does not delay other lanes.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::collector::{graph::WorkItem, kinds::KindId};

/// Maximum number of requests in flight. Requests of slow lanes do not count.
const MAX_IN_FLIGHT: usize = 96;
/// Maximum number of requests in flight of a lane. The others have the rest.
const MAX_OF_LANE: usize = 64;
/// Maximum number of requests in flight of all slow lanes together.
const MAX_OF_SLOW_LANES: usize = 32;
/// A slower answer counts as slow. It does not show the load of the API server.
pub const SLOW: Duration = Duration::from_secs(2);
/// Maximum number of requests in flight of a lane that is slow, or whose last request failed.
const MAX_SLOW: usize = 4;
/// The same for a lane without an answer yet.
const MAX_UNANSWERED: usize = 2;
/// This many refusals in a row throttle the lane; fewer may concern single objects.
const REFUSALS_TO_PAUSE: u32 = 3;

/// GETs or writes of one kind. An admission webhook that refuses writes does not refuse GETs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane {
    pub kind: KindId,
    /// GETs, not writes.
    pub is_get: bool,
}

/// Ready items by lane, with each lane's requests in flight. Lanes are served round-robin.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: HashMap<Lane, LaneState>,
    /// Lanes with items, in round-robin order.
    order: VecDeque<Lane>,
    /// Lanes with requests in flight. There may be tens of thousands of others.
    busy_lanes: Vec<Lane>,
    len: usize,
}

#[derive(Debug, Default)]
struct LaneState {
    items: VecDeque<WorkItem>,
    /// Start times of requests in flight, the oldest first.
    in_flight: VecDeque<Instant>,
    /// The last answer, if there was one.
    last_answer: Option<Feedback>,
    /// Refusals in a row.
    refusals: u32,
    /// End of the pause that the server asked for.
    paused_until: Option<Instant>,
}

/// Feedback of an answer to its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feedback {
    Fast,
    /// A slow answer, or a failure other than a refusal for overload.
    SlowOrFailed,
    /// The server is overloaded and asks for a pause until then.
    Refused(Instant),
}

// === impl Lane ===

impl Lane {
    /// The lane of an item about an object of this kind.
    pub fn of(item: WorkItem, kind: KindId) -> Self {
        let is_get = matches!(item, WorkItem::GetOwner(_));
        Self { kind, is_get }
    }
}

// === impl Lanes ===

impl Lanes {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_back(&mut self, lane: Lane, item: WorkItem) {
        self.enqueue(lane).push_back(item);
    }

    pub(super) fn push_front(&mut self, lane: Lane, item: WorkItem) {
        self.enqueue(lane).push_front(item);
    }

    fn enqueue(&mut self, lane: Lane) -> &mut VecDeque<WorkItem> {
        self.len += 1;
        let items = &mut self.lanes.entry(lane).or_default().items;
        if items.is_empty() {
            self.order.push_back(lane);
        }
        items
    }

    /// The next item. Lanes are served round-robin.
    pub fn pop_front(&mut self, now: Instant) -> Option<WorkItem> {
        let (fast, slow) = self.in_flight(now);
        if fast >= MAX_IN_FLIGHT {
            return None;
        }
        for _ in 0..self.order.len() {
            let lane = self.order.pop_front()?;
            let state = self.lanes.get_mut(&lane)?;
            let is_full = state.is_full(now) || (state.is_slow(now) && slow >= MAX_OF_SLOW_LANES);
            if !is_full && !state.is_paused(now) {
                let item = state.items.pop_front()?;
                self.len -= 1;
                if state.items.is_empty() {
                    self.remove_if_idle(lane);
                } else {
                    self.order.push_back(lane);
                }
                return Some(item);
            }
            self.order.push_back(lane);
        }
        None
    }

    /// When a paused lane resumes, or a request becomes slow and so frees a slot.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let resumes = self.order.iter().filter_map(|lane| self.lanes.get(lane)?.paused_until);
        let resumes = resumes.filter(|at| *at > now);
        let fast = self.busy_lanes().filter(|state| !state.is_slow(now));
        let slow = fast.filter_map(|state| Some(*state.in_flight.front()? + SLOW));
        let slow = slow.min().filter(|_| self.len > 0);
        resumes.chain(slow).min()
    }

    /// Number of requests in flight: of lanes that are not slow, and of slow ones.
    pub fn in_flight(&self, now: Instant) -> (usize, usize) {
        let sum = |is_slow: bool| {
            let lanes = self.busy_lanes().filter(|state| state.is_slow(now) == is_slow);
            lanes.map(|state| state.in_flight.len()).sum()
        };
        (sum(false), sum(true))
    }

    fn busy_lanes(&self) -> impl Iterator<Item = &LaneState> {
        self.busy_lanes.iter().filter_map(|lane| self.lanes.get(lane))
    }

    pub fn request_started(&mut self, lane: Lane, now: Instant) {
        let state = self.lanes.entry(lane).or_default();
        if state.in_flight.is_empty() {
            self.busy_lanes.push(lane);
        }
        state.in_flight.push_back(now);
    }

    /// Records the answer to the request that started at `started`.
    pub fn request_finished(&mut self, lane: Lane, started: Instant, answer: Feedback) {
        let Some(state) = self.lanes.get_mut(&lane) else {
            return;
        };
        if let Some(index) = state.in_flight.iter().position(|at| *at == started) {
            state.in_flight.remove(index);
        }
        if state.in_flight.is_empty() {
            self.busy_lanes.retain(|other| *other != lane);
        }
        state.last_answer = Some(answer);
        if let Feedback::Refused(until) = answer {
            state.refusals += 1;
            if state.refusals >= REFUSALS_TO_PAUSE {
                state.paused_until = Some(state.paused_until.map_or(until, |earlier| earlier.max(until)));
            }
        } else {
            state.refusals = 0;
            // A request that was sent before the end of the pause does not end it.
            state.paused_until.take_if(|until| started >= *until);
        }
        self.remove_if_idle(lane);
    }

    /// Removes the state of an idle lane, and frees the memory of an empty one.
    fn remove_if_idle(&mut self, lane: Lane) {
        let Some(state) = self.lanes.get_mut(&lane).filter(|state| state.items.is_empty()) else {
            return;
        };
        state.items = VecDeque::new();
        if state.in_flight.is_empty() && state.refusals == 0 && state.paused_until.is_none() {
            self.lanes.remove(&lane);
        }
    }
}

// === impl LaneState ===

impl LaneState {
    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    /// Whether its requests are slow or fail.
    fn is_slow(&self, now: Instant) -> bool {
        let is_late = self.in_flight.front().is_some_and(|&started| now >= started + SLOW);
        is_late || self.last_answer == Some(Feedback::SlowOrFailed)
    }

    /// Whether it may have no more requests in flight.
    fn is_full(&self, now: Instant) -> bool {
        let max = match self.last_answer {
            _ if self.is_slow(now) => MAX_SLOW,
            None => MAX_UNANSWERED,
            Some(Feedback::Refused(_)) => MAX_SLOW,
            Some(Feedback::Fast | Feedback::SlowOrFailed) => MAX_OF_LANE,
        };
        self.in_flight.len() >= max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::graph::{Graph, Observed};

    fn lanes() -> (Lanes, [Lane; 2], Vec<WorkItem>) {
        let mut graph = Graph::default();
        let mut lane = |kind: &str| Lane {
            kind: graph.kinds.id("", kind).unwrap(),
            is_get: false,
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
            nodes.push(WorkItem::Decide(graph.with_uid(&object.uid)[0]));
        }
        (Lanes::default(), both, nodes)
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_are_served_round_robin_and_none_has_more_than_two_thirds_of_all_requests() {
        let now = Instant::now();
        let (mut lanes, [slow, other], items) = lanes();
        for &item in &items[..4] {
            lanes.push_back(slow, item);
        }
        for &item in &items[4..] {
            lanes.push_back(other, item);
        }
        assert_eq!(lanes.pop_front(now), Some(items[0]));
        assert_eq!(lanes.pop_front(now), Some(items[4]));
        for lane in [slow, other] {
            lanes.request_started(lane, now);
            lanes.request_finished(lane, now, Feedback::Fast);
        }
        for _ in 0..MAX_OF_LANE {
            lanes.request_started(slow, now);
        }
        assert_eq!(lanes.pop_front(now), Some(items[5]));
        assert_eq!(lanes.pop_front(now), Some(items[6]));
        lanes.request_finished(slow, now, Feedback::Fast);
        assert_eq!(lanes.pop_front(now), Some(items[1]));
        assert_eq!(lanes.pop_front(now), Some(items[7]));
        lanes.request_started(slow, now);
        assert_eq!(lanes.pop_front(now), None);
        lanes.request_finished(slow, now, Feedback::Fast);
        assert_eq!(lanes.pop_front(now), Some(items[2]));
        assert_eq!(lanes.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_pauses_only_after_several_refusals_in_a_row() {
        let now = Instant::now();
        let until = now + Duration::from_secs(300);
        let (mut lanes, [slow, _], items) = lanes();
        lanes.push_back(slow, items[0]);
        let refusals = Feedback::Refused(until);
        for answer in [refusals, refusals, Feedback::Fast, refusals, refusals] {
            lanes.request_started(slow, now);
            lanes.request_finished(slow, now, answer);
        }
        let is_paused = |lanes: &Lanes| lanes.lanes[&slow].is_paused(now);
        assert!(!is_paused(&lanes));
        lanes.request_started(slow, now);
        lanes.request_finished(slow, now, refusals);
        assert!(is_paused(&lanes));
        assert_eq!((lanes.pop_front(now), lanes.next_due(now)), (None, Some(until)));
        lanes.request_started(slow, now);
        lanes.request_finished(slow, now, Feedback::Fast);
        assert_eq!(lanes.pop_front(now), None, "it was sent before the end of the pause");
        assert_eq!(lanes.pop_front(until), Some(items[0]));
        lanes.request_started(slow, until);
        lanes.request_finished(slow, until, Feedback::Fast);
        assert!(lanes.lanes.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_of_a_lane_are_limited_until_it_answers_fast() {
        let now = Instant::now();
        let (mut lanes, [slow, _], items) = lanes();
        for &item in &items {
            lanes.push_back(slow, item);
        }
        let begin = |lanes: &mut Lanes, now| {
            let mut started = 0;
            while lanes.pop_front(now).is_some() {
                lanes.request_started(slow, now);
                started += 1;
            }
            started
        };
        assert_eq!(begin(&mut lanes, now), MAX_UNANSWERED);
        assert_eq!((lanes.next_due(now), lanes.in_flight(now).1), (Some(now + SLOW), 0));
        let late = now + SLOW;
        assert_eq!(lanes.in_flight(late).1, MAX_UNANSWERED);
        assert_eq!(begin(&mut lanes, late), MAX_SLOW - MAX_UNANSWERED);
        lanes.request_finished(slow, now, Feedback::SlowOrFailed);
        assert_eq!(begin(&mut lanes, late), 1);
        lanes.request_finished(slow, now, Feedback::Fast);
        assert_eq!((begin(&mut lanes, late), lanes.in_flight(late).1), (3, 0));
    }
}
