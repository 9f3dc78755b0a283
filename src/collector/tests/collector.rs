//! The graph with a queue: applies events and answers, and processes work items.

use std::sync::Arc;

use super::{
    monitor::Monitor,
    world::{GetAnswer, KINDS, Key, World},
};
use crate::collector::{
    decide::Policy,
    graph::{Coordinates, Graph, Link, NodeId, WorkItem},
    kinds::{KindId, Resource, Scope},
    uid::Uid,
};

pub struct Collector {
    pub graph: Graph,
    pub kinds: Vec<Kind>,
    pub queue: Vec<WorkItem>,
    /// Answers in flight.
    pub answers: Vec<(Question, GetAnswer)>,
    /// Number of GETs.
    pub asked: u64,
    /// Names and policies of deleted objects, in order.
    pub deleted: Vec<(String, Policy)>,
}

/// A GET.
#[derive(Clone, PartialEq, Eq)]
pub struct Question {
    id: NodeId,
    uid: Uid,
    kind: KindId,
    namespace: Arc<str>,
    name: String,
}

/// A kind and its monitor.
pub struct Kind {
    pub id: KindId,
    pub is_served: bool,
    pub monitor: Monitor,
    /// Its first list is complete.
    pub is_synced: bool,
    /// The resourceVersion up to which the monitor has reported everything.
    pub progress: u64,
}

impl Collector {
    pub fn new() -> Self {
        let mut graph = Graph::default();
        let kinds = KINDS.iter().map(|(kind, _)| Kind {
            id: graph.kinds.id("", kind).unwrap(),
            is_served: true,
            monitor: Monitor::Down,
            is_synced: false,
            progress: 0,
        });
        let kinds: Vec<Kind> = kinds.collect();
        for (index, kind) in kinds.iter().enumerate() {
            graph.kinds.set_resource(kind.id, Some(resource(index)));
        }
        Self {
            graph,
            kinds,
            queue: Vec::new(),
            answers: Vec::new(),
            asked: 0,
            deleted: Vec::new(),
        }
    }

    pub fn collect_items(&mut self) {
        let items = self.graph.take_items();
        self.queue.extend(items);
    }

    /// All served kinds have been listed.
    pub fn is_synced(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_synced || !kind.is_served)
    }

    /// Updates whether a kind is served.
    pub fn discover(&mut self, world: &World, index: usize) {
        let kind = &mut self.kinds[index];
        let is_served = world.serves(KINDS[index].0);
        if kind.is_served == is_served {
            return;
        }
        (kind.is_served, kind.is_synced) = (is_served, false);
        (kind.monitor, kind.progress) = (Monitor::Down, 0);
        if is_served {
            self.graph.kinds.set_resource(kind.id, Some(resource(index)));
            self.graph.apply_served(kind.id);
        } else {
            self.graph.apply_unserved(kind.id);
        }
        self.collect_items();
    }

    /// Number of objects that the graph takes for existing.
    pub fn known(&self) -> usize {
        let there = |id: &NodeId| self.graph.node(*id).state.exists();
        let (_, isolated) = self.graph.len();
        isolated + self.graph.nodes().filter(there).count()
    }

    /// Delivers all events and answers, and processes all items.
    pub fn settle(&mut self, world: &mut World) {
        for _ in 0..10_000 {
            (0..KINDS.len()).for_each(|index| self.discover(world, index));
            let delivered = (0..KINDS.len()).filter(|&index| self.deliver(world, index)).count();
            let answered = self.deliver_answer(0);
            if !self.process_item(world, 0) && delivered == 0 && !answered {
                return;
            }
        }
        panic!("it never ends: {:?}", self.queue);
    }

    /// Processes one item; `false` if there is none.
    pub fn process_item(&mut self, world: &mut World, which: usize) -> bool {
        self.collect_items();
        if self.queue.is_empty() {
            return false;
        }
        let item = self.queue.swap_remove(which % self.queue.len());
        match item {
            WorkItem::Decide(id) => self.take_step(world, id),
            WorkItem::GetOwner(id) => self.get_owner(world, id),
            WorkItem::Dependents(id) if self.graph.contains(id) => {
                let dependents = self.graph.dependents(id);
                self.queue
                    .extend(dependents.map(|Link { node, .. }| WorkItem::Decide(node)));
            }
            WorkItem::Dependents(_) => {}
        }
        self.collect_items();
        true
    }

    pub fn key(&self, id: NodeId) -> Key {
        let node = self.graph.node(id);
        (
            self.graph.kinds.kind(node.kind).to_owned(),
            node.namespace.to_string(),
            node.name.to_string(),
        )
    }

    pub fn get_owner(&mut self, world: &World, id: NodeId) {
        if !self.graph.contains(id) || !self.graph.is_unknown(id) {
            return;
        }
        let node = self.graph.node(id);
        let Some(resource) = self.graph.kinds.resource(node.kind) else {
            return;
        };
        let question = self.question(id);
        if self.answers.iter().any(|(other, _)| *other == question)
            || (resource.scope == Scope::Cluster) != node.namespace.is_empty()
        {
            return;
        }
        self.asked += 1;
        self.get(world, id);
    }

    pub fn question(&self, id: NodeId) -> Question {
        let node = self.graph.node(id);
        Question {
            id,
            uid: node.uid,
            kind: node.kind,
            namespace: Arc::clone(&node.namespace),
            name: node.name.to_string(),
        }
    }

    /// Reads the object now. The answer may arrive much later.
    pub fn get(&mut self, world: &World, id: NodeId) {
        self.answers.push((self.question(id), world.get(&self.key(id))));
    }

    /// Delivers an answer; `false` if none is in flight.
    pub fn deliver_answer(&mut self, which: usize) -> bool {
        if self.answers.is_empty() {
            return false;
        }
        let (question, got) = self.answers.swap_remove(which % self.answers.len());
        self.apply_answer(&question, got);
        self.collect_items();
        true
    }

    pub fn apply_answer(&mut self, question: &Question, got: GetAnswer) {
        let Question {
            id,
            uid,
            kind,
            ref namespace,
            ref name,
        } = *question;
        if !self.graph.matches(id, uid, Coordinates { kind, namespace, name }) {
            return;
        }
        match got {
            GetAnswer::NoRoute => self.queue.push(WorkItem::GetOwner(id)),
            GetAnswer::Exists(object) if object.uid == self.graph.uid(id) => {
                let Some(kind) = self.kinds.iter().find(|it| it.id == kind && it.is_served) else {
                    return;
                };
                if !self.graph.apply_get(id, &object, kind.progress) {
                    self.queue.push(WorkItem::GetOwner(id));
                }
            }
            GetAnswer::Exists(_) | GetAnswer::Gone => self.graph.set_absent(id),
        }
    }
}

fn resource(index: usize) -> Resource {
    let (kind, namespaced) = KINDS[index];
    let scope = if namespaced { Scope::Namespaced } else { Scope::Cluster };
    Resource {
        version: "v1".into(),
        plural: kind.to_lowercase(),
        scope,
        short_names: Vec::new(),
    }
}
