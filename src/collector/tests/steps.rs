//! Steps of the collector in the simulated cluster.

use super::{
    collector::Collector,
    rules,
    world::{GetAnswer, Key, Refused, World},
};
use crate::collector::{
    decide::{Deletion, Finalizer, Policy, Step, decide},
    graph::{NodeId, NodeState, Observed, WorkItem},
};

impl Collector {
    pub fn take_step(&mut self, world: &mut World, id: NodeId) {
        if !self.graph.contains(id) || !self.graph.node(id).state.contains(NodeState::OBSERVED) {
            return;
        }
        let key = self.key(id);
        let known = Observed {
            uid: self.graph.uid(id),
            version: self.graph.node(id).version,
            ..Observed::default()
        };
        let result = match decide(&self.graph, id) {
            Step::Nothing | Step::Wait | Step::Unresolved(_) | Step::NamespacedOwner(_) => return,
            Step::GetOwners(owners) => {
                for owner in owners {
                    self.get_owner(world, owner);
                }
                self.queue.push(WorkItem::Decide(id));
                return;
            }
            // These finalizers are removed only while all kinds are synced.
            Step::RemoveFinalizer(_) if !self.is_synced() => {
                self.queue.push(WorkItem::Decide(id));
                return;
            }
            Step::RemoveFinalizer(Finalizer::Foreground) => {
                world.change(&key, &known, |object| object.seen.foreground = false)
            }
            Step::RemoveFinalizer(Finalizer::Orphan) => world.remove_orphan_finalizer(&key, &known),
            Step::DropReferences(owners) => self.drop_references(world, &owners, &key, &known),
            Step::Delete(Deletion {
                policy,
                clear_blocking,
                waiting_owners,
            }) => {
                let still_wait = |owner: &NodeId| match world.get(&self.key(*owner)) {
                    GetAnswer::Exists(found) => {
                        found.uid == self.graph.uid(*owner) && found.deleting && found.foreground
                    }
                    GetAnswer::Gone | GetAnswer::NoRoute => false,
                };
                if !waiting_owners.iter().all(still_wait) {
                    for owner in waiting_owners {
                        let question = self.question(owner);
                        self.apply_answer(&question, world.get(&self.key(owner)));
                    }
                    self.queue.push(WorkItem::Decide(id));
                    return;
                }
                self.delete(world, &key, &known, policy, clear_blocking)
            }
        };
        match result {
            Ok(()) => {}
            Err(Refused::Gone) => self.graph.set_absent(id),
            Err(Refused::NoRoute) => self.queue.push(WorkItem::Decide(id)),
            Err(Refused::Conflict) => {
                self.get(world, id);
                self.queue.push(WorkItem::Decide(id));
            }
        }
    }

    fn drop_references(
        &self,
        world: &mut World,
        owners: &[NodeId],
        key: &Key,
        known: &Observed,
    ) -> Result<(), Refused> {
        let out: Vec<(String, Key)> = owners.iter().map(|&it| (self.graph.uid(it), self.key(it))).collect();
        world.change(key, known, |object| {
            object.seen.owners.retain(|reference| {
                let matches = |(uid, index): &(String, Key)| {
                    reference.uid == *uid && reference.kind == index.0 && reference.name == index.2
                };
                !out.iter().any(matches)
            });
        })
    }

    fn delete(
        &mut self,
        world: &mut World,
        key: &Key,
        known: &Observed,
        policy: Policy,
        clear_blocking: bool,
    ) -> Result<(), Refused> {
        world.change(key, known, |object| {
            for reference in object.seen.owners.iter_mut().filter(|_| clear_blocking) {
                reference.blocking = false;
            }
        })?;
        assert!(!rules::must_stay(world, key), "deleted: {key:?} of {world:#?}");
        self.deleted.push((key.2.clone(), policy));
        world.delete(key, policy);
        Ok(())
    }
}
