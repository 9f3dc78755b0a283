//! A random graph and the deletions in it, from a seed.

use testbed::dice::Dice;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Map,
    Secret,
    Account,
    Role,
    /// A namespaced custom kind with two versions.
    Leaf,
    /// A cluster-scoped custom kind.
    Root,
}

/// All kinds, by their numbers.
pub const KINDS: [Kind; 6] = [
    Kind::Map,
    Kind::Secret,
    Kind::Account,
    Kind::Role,
    Kind::Leaf,
    Kind::Root,
];

/// Namespace of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// The graph's own one.
    Own,
    /// One that all graphs share.
    Other,
    /// None.
    Cluster,
}

/// Target of an owner reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// An object at its coordinates, in any namespace.
    Thing(usize),
    /// An object's UID with another name.
    OtherName(usize),
    /// An object's UID and name with another kind.
    OtherKind(usize, Kind),
    /// An object that never existed.
    Never(Kind),
    /// An object of an unserved kind.
    Unserved,
}

/// An owner reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    pub target: Target,
    /// With another version of its kind, if there is one.
    pub old: bool,
    pub blocking: bool,
}

/// Finalizers that an object is created with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Finalizers {
    pub orphan: bool,
    pub foreground: bool,
    pub with_finalizer: bool,
}

/// An object of the graph.
#[derive(Debug, Clone)]
pub struct Thing {
    pub kind: Kind,
    pub space: Space,
    pub finalizers: Finalizers,
    pub owners: Vec<Reference>,
    /// Number of references that are added only after all objects exist.
    pub late: usize,
}

/// How a client deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Background,
    Foreground,
    Orphan,
    /// No policy: the finalizers decide.
    Silent,
}

/// A graph, and the objects to delete, one after the other.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub things: Vec<Thing>,
    pub deletions: Vec<(usize, Policy)>,
}

impl Kind {
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Self::Role | Self::Root)
    }

    fn any(dice: &mut Dice) -> Self {
        KINDS[dice.up_to(KINDS.len())]
    }
}

impl Plan {
    pub fn new(seed: u64, steps: usize) -> Self {
        let dice = &mut Dice::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut things = Vec::new();
        let mut kept: Vec<bool> = Vec::new();
        for number in 0..4 + dice.up_to(6) {
            let thing = thing(dice, number, &things);
            kept.push(is_not_garbage(&thing, &things, &kept));
            things.push(thing);
        }
        for number in 0..things.len() {
            // An orphaning object that is deleted while the graph grows orphans dependents by chance.
            if kept[number] && dice.one_in(6) {
                let orphan = dice.one_in(2);
                things[number].finalizers.orphan = orphan;
                things[number].finalizers.foreground = !orphan;
            }
            let is_sound = |it: &Thing| it.owners.iter().all(|owner| matches!(owner.target, Target::Thing(_)));
            let target = dice.up_to(things.len());
            let reference = reference(dice, target);
            let (from, to) = (&things[number], &things[target]);
            // Cycles: a later reference may lead back.
            let fits = !to.kind.is_namespaced() || from.space == to.space;
            if dice.one_in(4) && target > number && kept[number] && kept[target] && is_sound(from) && fits {
                things[number].owners.push(reference);
                things[number].late += 1;
            }
        }
        let policies = [Policy::Background, Policy::Foreground, Policy::Orphan, Policy::Silent];
        let deletions = (0..steps).map(|_| (dice.up_to(things.len()), policies[dice.up_to(4)]));
        let deletions = deletions.collect();
        Self {
            seed,
            things,
            deletions,
        }
    }

    /// Whether kube-controller-manager can be checked with it. It takes an object for a dependent by UID alone. An
    /// object once deleted in the foreground counts as waiting as long as it exists, so that it sees cycles where there
    /// are none.
    pub fn suits_kube_controller_manager(&self) -> bool {
        let foreground = |(_, policy): &(usize, Policy)| *policy == Policy::Foreground;
        let may_wait = self.deletions.iter().any(foreground) || self.things.iter().any(|it| it.finalizers.foreground);
        let may_stay = self.things.iter().any(|it| it.finalizers.with_finalizer);
        let is_placed = self.things.iter().all(|thing| {
            let is_invalid = |owner: &Reference| match owner.target {
                Target::Thing(target) => {
                    let target = &self.things[target];
                    target.kind.is_namespaced() && target.space != thing.space
                }
                Target::OtherName(_) | Target::OtherKind(..) => true,
                Target::Never(_) | Target::Unserved => false,
            };
            let alone = thing.finalizers == Finalizers::default() && thing.space != Space::Cluster;
            let unresolved = thing.owners.iter().any(|owner| owner.target == Target::Unserved);
            !thing.owners.iter().any(is_invalid) || (alone && !unresolved)
        });
        is_placed && !(may_wait && may_stay)
    }
}

fn reference(dice: &mut Dice, target: usize) -> Reference {
    Reference {
        target: Target::Thing(target),
        old: dice.one_in(2),
        blocking: dice.one_in(2),
    }
}

fn thing(dice: &mut Dice, number: usize, before: &[Thing]) -> Thing {
    let kind = Kind::any(dice);
    let space = match kind.is_namespaced() {
        false => Space::Cluster,
        true if dice.one_in(12) => Space::Other,
        true => Space::Own,
    };
    let mut owners: Vec<Reference> = Vec::new();
    let count = if number == 0 { 0 } else { dice.up_to(4) };
    for _ in 0..count {
        let target = dice.up_to(number);
        let mut it = reference(dice, target);
        let is_right = !before[target].kind.is_namespaced() || before[target].space == space;
        match dice.up_to(30) {
            0 => it.target = Target::OtherName(target),
            1 => {
                let other = Kind::any(dice);
                if other != before[target].kind {
                    it.target = Target::OtherKind(target, other);
                }
            }
            2 => it.target = Target::Never(Kind::any(dice)),
            3 => it.target = Target::Unserved,
            // An invalid namespace is as rare as the other invalid references.
            _ if !is_right && !dice.one_in(6) => continue,
            _ => {}
        }
        // Two references with one UID are in another test.
        if owners
            .iter()
            .all(|other| other.target.target_uid() != it.target.target_uid())
        {
            owners.push(it);
        }
    }
    let finalizers = Finalizers {
        with_finalizer: dice.one_in(7),
        ..Finalizers::default()
    };
    Thing {
        kind,
        space,
        finalizers,
        owners,
        late: 0,
    }
}

/// Whether none of its references makes it garbage at its creation.
fn is_not_garbage(thing: &Thing, before: &[Thing], kept: &[bool]) -> bool {
    let keeps = |owner: &Reference| match owner.target {
        Target::Thing(target) => {
            let is_right = !before[target].kind.is_namespaced() || before[target].space == thing.space;
            is_right && kept[target]
        }
        Target::Unserved => true,
        Target::OtherName(_) | Target::OtherKind(..) | Target::Never(_) => false,
    };
    thing.owners.is_empty() || thing.owners.iter().any(keeps)
}

impl Target {
    /// The object whose UID it names.
    pub fn target_uid(self) -> Option<usize> {
        match self {
            Self::Thing(target) | Self::OtherName(target) | Self::OtherKind(target, _) => Some(target),
            Self::Never(_) | Self::Unserved => None,
        }
    }
}
