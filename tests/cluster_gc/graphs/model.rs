//! The rules, played through: all the ends to which a graph may come, whoever acts first.

use std::collections::HashSet;

use super::plan::{Kind, Plan, Policy, Space, Target};

/// What is there of a thing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Live {
    pub deleting: bool,
    pub orphan: bool,
    pub foreground: bool,
    pub with_finalizer: bool,
    /// Which of the plan's references it has, and whether they block.
    pub owners: Vec<(usize, bool)>,
    /// Its blocking references were lifted so that it can go in the foreground.
    pub lifted: bool,
}

/// Of each thing of a plan what is there, if it is.
pub type World = Vec<Option<Live>>;

/// More turns than this of one graph are not played through.
const MOST: usize = 60_000;

/// What a reference leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Solid,
    Waiting,
    Absent,
    Untold,
}

/// As it was planned, with everything there.
pub fn born(plan: &Plan) -> World {
    let live = |thing: &super::plan::Thing| Live {
        orphan: thing.finalizers.orphan,
        foreground: thing.finalizers.foreground,
        with_finalizer: thing.finalizers.with_finalizer,
        owners: thing.owners.iter().map(|owner| owner.blocking).enumerate().collect(),
        ..Live::default()
    };
    plan.things.iter().map(|thing| Some(live(thing))).collect()
}

/// What the server makes of a deletion.
pub fn delete(world: &mut World, number: usize, policy: Policy) {
    let Some(live) = &mut world[number] else { return };
    live.deleting = true;
    match policy {
        Policy::Background => (live.orphan, live.foreground) = (false, false),
        Policy::Foreground => (live.orphan, live.foreground) = (false, true),
        Policy::Orphan => (live.orphan, live.foreground) = (true, false),
        Policy::Silent => {}
    }
    vanish(world, number);
}

/// What is being deleted and has no finalizers is gone.
fn vanish(world: &mut World, number: usize) {
    let is_over = |live: &Live| live.deleting && !live.orphan && !live.foreground && !live.with_finalizer;
    if world[number].as_ref().is_some_and(is_over) {
        world[number] = None;
    }
}

/// Every end that may be come to; nothing if there are too many ways. Somebody may take off the finalizers that hold.
pub fn ends(plan: &Plan, start: &World, letting_go: bool) -> Option<HashSet<World>> {
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start.clone()];
    let mut ends = HashSet::new();
    while let Some(world) = open.pop() {
        let turns = Turns {
            plan,
            world: &world,
            letting_go,
        };
        let next = turns.all();
        if next.is_empty() {
            let mut end = world;
            end.iter_mut().flatten().for_each(|live| live.lifted = false);
            ends.insert(end);
            continue;
        }
        open.extend(next.into_iter().filter(|world| seen.insert(world.clone())));
        if seen.len() > MOST {
            return None;
        }
    }
    Some(ends)
}

/// What may happen next.
struct Turns<'w> {
    plan: &'w Plan,
    world: &'w World,
    letting_go: bool,
}

// === impl Turns ===

impl Turns<'_> {
    fn all(&self) -> Vec<World> {
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
        vanish(&mut world, number);
        world
    }

    fn deleted(&self, number: usize, policy: Policy) -> World {
        let mut world = self.world.clone();
        delete(&mut world, number, policy);
        world
    }

    fn of(&self, number: usize, live: &Live) -> Vec<World> {
        let mut next = Vec::new();
        if self.letting_go && live.with_finalizer {
            next.push(self.with(number, |live| live.with_finalizer = false));
        }
        // An owner that orphans is taken out of its dependents, whatever becomes of them.
        // One that names its UID from where it is not may be taken for one.
        for &(owner, _) in &live.owners {
            let target = self.plan.things[number].owners[owner].target.about();
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
        if owners.is_empty() || has(Owner::Untold) {
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
            // One that names it from where it is not may be taken for a dependent.
            if live.lifted || (waits && self.is_named(number)) {
                next.push(self.deleted(number, Policy::Foreground));
            }
            return;
        }
        if self.is_in_circle(number) && live.owners.iter().any(|(_, blocking)| *blocking) {
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

    /// The thing that a reference leads to if it is where the reference says.
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
        // What has no namespace cannot be said to have an owner in one.
        let nowhere = |kind: Kind| kind.is_namespaced() && thing.space == Space::Cluster;
        let kind = match thing.owners[owner].target {
            Target::Unserved => return Owner::Untold,
            Target::Thing(target) | Target::OtherName(target) => self.plan.things[target].kind,
            Target::OtherKind(_, kind) | Target::Never(kind) => kind,
        };
        if nowhere(kind) {
            return Owner::Untold;
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

    /// Those that name it where it is, and whether they block it.
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

    fn is_in_circle(&self, number: usize) -> bool {
        self.dependents(number)
            .any(|(live, _)| live.deleting && live.foreground)
    }

    fn is_named(&self, number: usize) -> bool {
        let others = self.world.iter().enumerate();
        let mut live = others.filter_map(|(other, live)| Some((other, live.as_ref()?)));
        live.any(|(other, live)| {
            let about = |owner: usize| self.plan.things[other].owners[owner].target.about();
            live.owners.iter().any(|&(owner, _)| about(owner) == Some(number))
        })
    }
}
