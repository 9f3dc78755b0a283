//! The rules as a model: all outcomes of a graph, in any order of steps.

use std::collections::HashSet;

use super::plan::{Kind, Plan, Policy, Space, Target};

/// State of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Live {
    pub deleting: bool,
    pub orphan: bool,
    pub foreground: bool,
    pub with_finalizer: bool,
    /// Which of the plan's references it has, and whether they block.
    pub owners: Vec<(usize, bool)>,
    /// Its blocking references were cleared for its foreground deletion.
    pub lifted: bool,
}

/// State of each object of a plan; `None` if it does not exist.
pub type World = Vec<Option<Live>>;

/// Maximum number of states that are explored.
const MOST: usize = 60_000;

/// State of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Solid,
    Waiting,
    Absent,
    Unresolved,
}

/// The initial state: all objects exist.
pub fn initial(plan: &Plan) -> World {
    let live = |thing: &super::plan::Thing| Live {
        orphan: thing.finalizers.orphan,
        foreground: thing.finalizers.foreground,
        with_finalizer: thing.finalizers.with_finalizer,
        owners: thing.owners.iter().map(|owner| owner.blocking).enumerate().collect(),
        ..Live::default()
    };
    plan.things.iter().map(|thing| Some(live(thing))).collect()
}

/// Applies a DELETE as the API server does.
pub fn delete(world: &mut World, number: usize, policy: Policy) {
    let Some(live) = &mut world[number] else { return };
    live.deleting = true;
    match policy {
        Policy::Background => (live.orphan, live.foreground) = (false, false),
        Policy::Foreground => (live.orphan, live.foreground) = (false, true),
        Policy::Orphan => (live.orphan, live.foreground) = (true, false),
        Policy::Silent => {}
    }
    remove_if_deleted(world, number);
}

/// Removes an object in deletion without finalizers.
fn remove_if_deleted(world: &mut World, number: usize) {
    let is_over = |live: &Live| live.deleting && !live.orphan && !live.foreground && !live.with_finalizer;
    if world[number].as_ref().is_some_and(is_over) {
        world[number] = None;
    }
}

/// All outcomes; `None` if there are too many states. With `may_remove_finalizers`, the test finalizers may be removed.
pub fn outcomes(plan: &Plan, start: &World, may_remove_finalizers: bool) -> Option<HashSet<World>> {
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start.clone()];
    let mut outcomes = HashSet::new();
    while let Some(world) = open.pop() {
        let step = Step {
            plan,
            world: &world,
            may_remove_finalizers,
        };
        let next = step.next_states();
        if next.is_empty() {
            let mut end = world;
            end.iter_mut().flatten().for_each(|live| live.lifted = false);
            outcomes.insert(end);
            continue;
        }
        open.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
        if seen.len() > MOST {
            return None;
        }
    }
    Some(outcomes)
}

/// The next states.
struct Step<'w> {
    plan: &'w Plan,
    world: &'w World,
    may_remove_finalizers: bool,
}

impl Step<'_> {
    fn next_states(&self) -> Vec<World> {
        let things = self.world.iter().enumerate();
        things
            .filter_map(|(number, live)| Some((number, live.as_ref()?)))
            .flat_map(|(number, live)| self.of(number, live))
            .collect()
    }

    fn with(&self, number: usize, change: impl FnOnce(&mut Live)) -> World {
        let mut world = self.world.clone();
        if let Some(live) = &mut world[number] {
            change(live);
        }
        remove_if_deleted(&mut world, number);
        world
    }

    fn deleted(&self, number: usize, policy: Policy) -> World {
        let mut world = self.world.clone();
        delete(&mut world, number, policy);
        world
    }

    fn of(&self, number: usize, live: &Live) -> Vec<World> {
        let mut next = Vec::new();
        if self.may_remove_finalizers && live.with_finalizer {
            next.push(self.with(number, |live| live.with_finalizer = false));
        }
        // Dependents drop their reference to an orphaning owner, whatever becomes of them. An object that names its UID
        // at wrong coordinates may count as a dependent.
        for &(owner, _) in &live.owners {
            let target = self.plan.things[number].owners[owner].target.target_uid();
            let orphans = |live: &Live| live.deleting && live.orphan;
            if target.is_some_and(|target| self.world[target].as_ref().is_some_and(orphans)) {
                next.push(self.without(number, &[owner]));
            }
        }
        if live.deleting {
            if live.orphan && !self.has_dependents(number) {
                next.push(self.with(number, |live| live.orphan = false));
            }
            if live.foreground && !self.is_blocked(number) {
                next.push(self.with(number, |live| live.foreground = false));
            }
            return next;
        }
        self.by_owners(number, live, &mut next);
        next
    }

    fn by_owners(&self, number: usize, live: &Live, next: &mut Vec<World>) {
        let owners: Vec<(usize, Owner)> = live
            .owners
            .iter()
            .map(|&(owner, _)| (owner, self.owner(number, owner)))
            .collect();
        let has = |kind| owners.iter().any(|&(_, owner)| owner == kind);
        if owners.is_empty() || has(Owner::Unresolved) {
            return;
        }
        if has(Owner::Solid) {
            let out: Vec<usize> = owners
                .iter()
                .filter(|(_, owner)| *owner != Owner::Solid)
                .map(|&(owner, _)| owner)
                .collect();
            if !out.is_empty() {
                next.push(self.without(number, &out));
            }
            return;
        }
        let own = match (live.orphan, live.foreground) {
            (true, _) => Policy::Orphan,
            (false, true) => Policy::Foreground,
            (false, false) => Policy::Background,
        };
        let waits = has(Owner::Waiting);
        if !(waits && self.has_dependents(number)) {
            next.push(self.deleted(number, own));
            // An object that names it at wrong coordinates may count as a dependent.
            if live.lifted || (waits && self.is_named(number)) {
                next.push(self.deleted(number, Policy::Foreground));
            }
            return;
        }
        if self.is_in_cycle(number) && live.owners.iter().any(|(_, blocking)| *blocking) {
            let lifted = self.with(number, |live| {
                live.lifted = true;
                live.owners.iter_mut().for_each(|(_, blocking)| *blocking = false);
            });
            next.push(lifted);
            return;
        }
        next.push(self.deleted(number, Policy::Foreground));
    }

    fn without(&self, number: usize, out: &[usize]) -> World {
        self.with(number, |live| live.owners.retain(|(owner, _)| !out.contains(owner)))
    }

    /// The object that a reference leads to, if its coordinates are right.
    fn target(&self, number: usize, owner: usize) -> Option<usize> {
        let thing = &self.plan.things[number];
        let Target::Thing(target) = thing.owners[owner].target else {
            return None;
        };
        let it = &self.plan.things[target];
        (!it.kind.is_namespaced() || it.space == thing.space).then_some(target)
    }

    fn owner(&self, number: usize, owner: usize) -> Owner {
        let thing = &self.plan.things[number];
        // A cluster-scoped object cannot have a namespaced owner.
        let nowhere = |kind: Kind| kind.is_namespaced() && thing.space == Space::Cluster;
        let kind = match thing.owners[owner].target {
            Target::Unserved => return Owner::Unresolved,
            Target::Thing(target) | Target::OtherName(target) => self.plan.things[target].kind,
            Target::OtherKind(_, kind) | Target::Never(kind) => kind,
        };
        if nowhere(kind) {
            return Owner::Unresolved;
        }
        match self
            .target(number, owner)
            .and_then(|target| self.world[target].as_ref())
        {
            None => Owner::Absent,
            Some(live) if live.deleting && live.foreground => Owner::Waiting,
            Some(_) => Owner::Solid,
        }
    }

    /// Dependents with right coordinates, and whether they block it.
    fn dependents(&self, number: usize) -> impl Iterator<Item = (&Live, bool)> {
        let others = self.world.iter().enumerate();
        others
            .filter(move |(other, _)| *other != number)
            .filter_map(|(other, live)| Some((other, live.as_ref()?)))
            .flat_map(move |(other, live)| {
                let names = move |(owner, _): &&(usize, bool)| self.target(other, *owner) == Some(number);
                live.owners
                    .iter()
                    .filter(names)
                    .map(move |(_, blocking)| (live, *blocking))
            })
    }

    fn has_dependents(&self, number: usize) -> bool {
        self.dependents(number).next().is_some()
    }

    fn is_blocked(&self, number: usize) -> bool {
        self.dependents(number).any(|(_, blocking)| blocking)
    }

    fn is_in_cycle(&self, number: usize) -> bool {
        self.dependents(number)
            .any(|(live, _)| live.deleting && live.foreground)
    }

    fn is_named(&self, number: usize) -> bool {
        let others = self.world.iter().enumerate();
        let mut live = others.filter_map(|(other, live)| Some((other, live.as_ref()?)));
        live.any(|(other, live)| {
            let about = |owner: usize| self.plan.things[other].owners[owner].target.target_uid();
            live.owners.iter().any(|&(owner, _)| about(owner) == Some(number))
        })
    }
}
