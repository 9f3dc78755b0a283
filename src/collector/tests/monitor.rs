//! Monitor of a kind: lists that may be aborted, and events.

use super::{
    collector::Collector,
    world::{Event, KINDS, World},
};
use crate::collector::graph::Observed;

/// State of a monitor.
pub enum Monitor {
    /// Starts with a list.
    Down,
    /// Objects that the list has yet to show, and its version.
    Listing(Vec<Observed>, u64),
    Watching,
}

impl Collector {
    /// Completes the current list, or the next one.
    pub fn list(&mut self, world: &mut World, index: usize) {
        if let Monitor::Watching = self.kinds[index].monitor {
            self.kinds[index].monitor = Monitor::Down;
        }
        self.finish_list(world, index);
    }

    /// Completes a list if one is due, or else delivers the next event.
    pub fn deliver(&mut self, world: &mut World, index: usize) -> bool {
        let delivered = self.event(world, index);
        self.finish_list(world, index);
        delivered
    }

    fn finish_list(&mut self, world: &mut World, index: usize) {
        while !matches!(self.kinds[index].monitor, Monitor::Watching) && self.event(world, index) {}
    }

    /// Drops the current list or watch.
    pub fn abort_watch(&mut self, index: usize) {
        self.kinds[index].monitor = Monitor::Down;
    }

    /// Delivers the next object or event; `false` if there is none.
    pub fn event(&mut self, world: &mut World, index: usize) -> bool {
        let name = KINDS[index].0;
        let kind = &mut self.kinds[index];
        if !kind.is_served || !world.serves(name) {
            return false;
        }
        let events = world.events.entry(name.to_owned()).or_default();
        match &mut kind.monitor {
            Monitor::Down => {
                events.clear();
                let of_it = world.objects.iter().filter(|(key, _)| key.0 == name);
                let remaining = of_it.map(|(_, object)| object.seen.clone()).collect();
                kind.monitor = Monitor::Listing(remaining, world.version);
                self.graph.begin_list(kind.id);
            }
            Monitor::Listing(remaining, version) => {
                if let Some(object) = remaining.pop() {
                    self.graph.observe(kind.id, &object);
                } else {
                    let version = *version;
                    kind.progress = kind.progress.max(version);
                    kind.is_synced = true;
                    kind.monitor = Monitor::Watching;
                    assert!(!self.graph.end_list(kind.id, version), "no store was restored");
                }
            }
            Monitor::Watching => match events.pop_front() {
                None => {
                    // A bookmark.
                    kind.progress = world.version;
                    return false;
                }
                Some(Event::Seen(object)) => {
                    kind.progress = object.version;
                    self.graph.observe(kind.id, &object);
                }
                Some(Event::Gone(uid, version)) => {
                    kind.progress = version;
                    self.graph.apply_deletion(kind.id, &uid);
                }
                Some(Event::Broken) => kind.monitor = Monitor::Down,
            },
        }
        self.collect_items();
        true
    }
}
