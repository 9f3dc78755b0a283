//! The graph at work: events in, hints followed, steps taken against the world.

use std::collections::BTreeSet;

use super::{
    judge,
    world::{Event, KINDS, Key, Refused, World},
};
use crate::gc::{
    decide::{Policy, Step, decide},
    graph::{Graph, Hint, NodeId, State},
    kinds::{KindId, Resource, Scope},
};

pub struct Collector {
    pub graph: Graph,
    kinds: Vec<KindId>,
    listed: BTreeSet<usize>,
    pub queue: Vec<Hint>,
    /// How often it was asked whether something is there.
    pub asked: u64,
    /// What was deleted, in this order, and how.
    pub deleted: Vec<(String, Policy)>,
}

impl Collector {
    pub fn new() -> Self {
        let mut graph = Graph::default();
        let mut ids = Vec::new();
        for (kind, namespaced) in KINDS {
            let id = graph.kinds.id("", kind).unwrap();
            let scope = if namespaced { Scope::Namespaced } else { Scope::Cluster };
            graph.kinds.set_resource(
                id,
                Some(Resource {
                    version: "v1".into(),
                    plural: kind.to_lowercase(),
                    scope,
                }),
            );
            ids.push(id);
        }
        Self {
            graph,
            kinds: ids,
            listed: BTreeSet::new(),
            queue: Vec::new(),
            asked: 0,
            deleted: Vec::new(),
        }
    }

    fn note(&mut self) {
        let hints = self.graph.hints();
        self.queue.extend(hints);
    }

    /// All kinds have been listed.
    pub fn is_synced(&self) -> bool {
        self.listed.len() == KINDS.len()
    }

    /// A complete list, instead of whatever events are under way.
    pub fn list(&mut self, world: &mut World, place: usize) {
        let (kind, id) = (KINDS[place].0, self.kinds[place]);
        world.events.entry(kind.to_owned()).or_default().clear();
        self.graph.begin_list(id);
        for (_, object) in world.objects.iter().filter(|(key, _)| key.0 == kind) {
            self.graph.observe(id, &object.seen);
        }
        self.graph.end_list(id);
        self.listed.insert(place);
        self.note();
    }

    /// The next event of a kind; `false` if there is none.
    pub fn event(&mut self, world: &mut World, place: usize) -> bool {
        let (kind, id) = (KINDS[place].0, self.kinds[place]);
        if !self.listed.contains(&place) {
            self.list(world, place);
            return true;
        }
        match world.events.entry(kind.to_owned()).or_default().pop_front() {
            None => return false,
            Some(Event::Seen(object)) => self.graph.observe(id, &object),
            Some(Event::Gone(uid)) => self.graph.vanished(id, &uid),
        }
        self.note();
        true
    }

    /// How many objects it takes to be there.
    pub fn known(&self) -> usize {
        let there = |id: &NodeId| self.graph.node(*id).state.has(State::OBSERVED);
        let (_, lone) = self.graph.len();
        lone + self.graph.nodes().filter(there).count()
    }

    /// Until all is told, and everything is done.
    pub fn settle(&mut self, world: &mut World) {
        for _ in 0..10_000 {
            let told = (0..KINDS.len()).filter(|&place| self.event(world, place)).count();
            if !self.follow(world, 0) && told == 0 {
                return;
            }
        }
        panic!("it never ends: {:?}", self.queue);
    }

    /// Follows one hint; `false` if there is none.
    pub fn follow(&mut self, world: &mut World, which: usize) -> bool {
        self.note();
        if self.queue.is_empty() {
            return false;
        }
        let hint = self.queue.swap_remove(which % self.queue.len());
        match hint {
            Hint::Decide(id) => self.step(world, id),
            Hint::Ask(id) => self.ask(world, id),
            Hint::Dependents(id) if self.lives(id) => {
                for _ in 0..self.graph.node(id).dependents {
                    let next = self.graph.next_dependent(id);
                    self.queue.extend(next.map(Hint::Decide));
                }
            }
            Hint::Dependents(_) => {}
        }
        self.note();
        true
    }

    /// Hints may be older than what they speak of.
    fn lives(&self, id: NodeId) -> bool {
        self.graph.nodes().any(|other| other == id)
    }

    fn key(&self, id: NodeId) -> Key {
        let node = self.graph.node(id);
        (
            self.graph.kinds.kind(node.kind).to_owned(),
            self.graph.namespace(node.namespace).to_owned(),
            node.name.to_string(),
        )
    }

    fn ask(&mut self, world: &World, id: NodeId) {
        if !self.lives(id) || !self.graph.is_in_question(id) {
            return;
        }
        let node = self.graph.node(id);
        let Some(resource) = self.graph.kinds.resource(node.kind) else {
            return;
        };
        if (resource.scope == Scope::Cluster) != self.graph.namespace(node.namespace).is_empty() {
            return;
        }
        self.asked += 1;
        self.look(world, id);
    }

    /// As a GET shows it.
    fn look(&mut self, world: &World, id: NodeId) {
        let kind = self.graph.node(id).kind;
        match world.objects.get(&self.key(id)) {
            Some(object) if object.seen.uid == self.graph.uid(id) => {
                self.graph.observe(kind, &object.seen);
                let dependents: Vec<_> = self.graph.dependents(id).map(|link| Hint::Decide(link.node)).collect();
                self.queue.extend(dependents);
            }
            _ => self.graph.absent(id),
        }
    }

    fn step(&mut self, world: &mut World, id: NodeId) {
        if !self.lives(id) || !self.graph.node(id).state.has(State::OBSERVED) {
            return;
        }
        let key = self.key(id);
        let mut known = world
            .objects
            .get(&key)
            .map(|object| object.seen.clone())
            .unwrap_or_default();
        known.uid = self.graph.uid(id);
        known.version = self.graph.node(id).version.to_string();

        let result = match decide(&self.graph, id) {
            Step::Nothing | Step::Wait | Step::Unserved(_) | Step::Impossible(_) => return,
            Step::Ask(owners) => {
                for owner in owners {
                    self.ask(world, owner);
                }
                self.queue.push(Hint::Decide(id));
                return;
            }
            // The end of these two rests on all kinds.
            Step::FinishForeground | Step::Orphan if !self.is_synced() => {
                self.queue.push(Hint::Decide(id));
                return;
            }
            Step::FinishForeground => world.change(&key, &known, |object| object.seen.foreground = false),
            Step::Orphan => self.orphan(world, id, &key),
            Step::Release(owners) => {
                let uids: Vec<String> = owners.iter().map(|&owner| self.graph.uid(owner)).collect();
                let places: Vec<Key> = owners.iter().map(|&owner| self.key(owner)).collect();
                world.change(&key, &known, |object| {
                    object.seen.owners.retain(|reference| {
                        let mut out = places.iter().zip(&uids);
                        !out.any(|(place, uid)| {
                            reference.uid == *uid && reference.kind == place.0 && reference.name == place.2
                        })
                    });
                })
            }
            Step::Delete {
                policy,
                unblock,
                because,
            } => {
                let still_wait = |owner: &NodeId| {
                    let owner_object = world.objects.get(&self.key(*owner));
                    owner_object.is_some_and(|it| it.seen.deleting && it.seen.foreground)
                };
                if !because.iter().all(still_wait) {
                    for owner in because {
                        self.look(world, owner);
                    }
                    self.queue.push(Hint::Decide(id));
                    return;
                }
                self.delete(world, &key, &known, policy, unblock)
            }
        };
        match result {
            Ok(()) => {}
            Err(Refused::Gone) => self.graph.absent(id),
            Err(Refused::Conflict) => {
                let kind = self.graph.node(id).kind;
                self.graph.observe(kind, &world.objects[&key].seen);
                self.queue.push(Hint::Decide(id));
            }
        }
    }

    fn delete(
        &mut self,
        world: &mut World,
        key: &Key,
        known: &crate::gc::graph::Observed,
        policy: Policy,
        unblock: bool,
    ) -> Result<(), Refused> {
        if unblock {
            world.change(key, known, |object| {
                object
                    .seen
                    .owners
                    .iter_mut()
                    .for_each(|reference| reference.blocking = false);
            })?;
        } else {
            world.change(key, known, |_| ())?;
        }
        assert!(!judge::must_stay(world, key), "deleted: {key:?} of {world:#?}");
        self.deleted.push((key.2.clone(), policy));
        world.delete(key, policy);
        Ok(())
    }

    fn orphan(&mut self, world: &mut World, id: NodeId, key: &Key) -> Result<(), Refused> {
        let uid = self.graph.uid(id);
        let dependents: Vec<Key> = self.graph.dependents(id).map(|link| self.key(link.node)).collect();
        for dependent in dependents {
            if let Some(mut object) = world.objects.get(&dependent).cloned() {
                object.seen.owners.retain(|reference| reference.uid != uid);
                world.put(dependent, object);
            }
        }
        let live = world.objects.get(key).filter(|it| it.seen.uid == uid).cloned();
        let mut live = live.ok_or(Refused::Gone)?;
        live.seen.orphan = false;
        world.put(key.clone(), live);
        Ok(())
    }
}
