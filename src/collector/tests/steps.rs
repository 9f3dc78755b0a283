//! Steps of the collector in the simulated cluster.

use super::{
    collector::Collector,
    judge,
    world::{Got, Key, Refused, World},
};
use crate::collector::{
    decide::{Policy, Step, decide},
    graph::{Hint, NodeId, Observed, State},
};

impl Collector {
    pub fn step(&mut self, world: &mut World, id: NodeId) {
        if !self.graph.lives(id) || !self.graph.node(id).state.has(State::OBSERVED) {
            return;
        }
        let key = self.key(id);
        let known = Observed {
            uid: self.graph.uid(id),
            version: self.graph.node(id).version.to_string(),
            ..Observed::default()
        };
        let result = match decide(&self.graph, id) {
            Step::Nothing | Step::Wait | Step::Unserved(_) | Step::Impossible(_) => return,
            Step::Ask(owners) => {
                for owner in owners {
                    self.ask(world, owner);
                }
                self.queue.push(Hint::Decide(id));
                return;
            }
            // These finalizers are removed only while all kinds are synced.
            Step::FinishForeground | Step::FinishOrphan if !self.is_synced() => {
                self.queue.push(Hint::Decide(id));
                return;
            }
            Step::FinishForeground => world.change(&key, &known, |object| object.seen.foreground = false),
            Step::FinishOrphan => world.finish_orphan(&key, &known),
            Step::Release(owners) => self.release(world, &owners, &key, &known),
            Step::Delete {
                policy,
                unblock,
                because,
            } => {
                let still_wait = |owner: &NodeId| match world.get(&self.key(*owner)) {
                    Got::There(owner) => owner.deleting && owner.foreground,
                    Got::Gone | Got::NoRoute => false,
                };
                if !because.iter().all(still_wait) {
                    for owner in because {
                        let question = self.question(owner);
                        self.take(&question, world.get(&self.key(owner)));
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
            Err(Refused::NoRoute) => self.queue.push(Hint::Decide(id)),
            Err(Refused::Conflict) => {
                self.get(world, id);
                self.queue.push(Hint::Decide(id));
            }
        }
    }

    fn release(&self, world: &mut World, owners: &[NodeId], key: &Key, known: &Observed) -> Result<(), Refused> {
        let out: Vec<(String, Key)> = owners.iter().map(|&it| (self.graph.uid(it), self.key(it))).collect();
        world.change(key, known, |object| {
            object.seen.owners.retain(|reference| {
                let is_it = |(uid, place): &(String, Key)| {
                    reference.uid == *uid && reference.kind == place.0 && reference.name == place.2
                };
                !out.iter().any(is_it)
            });
        })
    }

    fn delete(
        &mut self,
        world: &mut World,
        key: &Key,
        known: &Observed,
        policy: Policy,
        unblock: bool,
    ) -> Result<(), Refused> {
        world.change(key, known, |object| {
            for reference in object.seen.owners.iter_mut().filter(|_| unblock) {
                reference.blocking = false;
            }
        })?;
        assert!(!judge::must_stay(world, key), "deleted: {key:?} of {world:#?}");
        self.deleted.push((key.2.clone(), policy));
        world.delete(key, policy);
        Ok(())
    }
}
