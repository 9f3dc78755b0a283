//! Where the boxes of a drawing stand, and how its arrows go around them.

use dagre::{
    EdgeLabel, LayoutOptions, NodeLabel, Point, RankDir,
    graph::{Graph, GraphOptions},
};

use super::MARGIN;

/// From one box to another.
pub struct Arrow {
    /// Whence.
    pub from: usize,
    /// Whither.
    pub to: usize,
    /// How it looks.
    pub class: &'static str,
}

/// Boxes and arrows in their places.
pub struct Layout {
    graph: Graph<NodeLabel, EdgeLabel>,
    /// Arrows that have one in the other direction beside them.
    paired: Vec<bool>,
}

/// The place of a box.
#[derive(Clone, Copy)]
pub struct Area {
    middle: (f64, f64),
    /// Its width and height.
    pub size: (f64, f64),
}

// === impl Layout ===

impl Layout {
    /// Finds a place for all, in columns that arrows lead through from right to left.
    pub fn of(sizes: &[(f64, f64)], arrows: &[Arrow]) -> Self {
        // As a multigraph: there may be an arrow in either direction.
        let mut graph = Graph::with_options(GraphOptions {
            directed: true,
            multigraph: true,
            compound: false,
        });
        // With boxes as wide as their column no arrow comes out behind another one.
        let width = sizes.iter().fold(0.0, |width: f64, size| width.max(size.0));
        for (place, &(_, height)) in sizes.iter().enumerate() {
            let label = NodeLabel {
                width,
                height,
                ..NodeLabel::default()
            };
            graph.set_node(place.to_string(), Some(label));
        }
        for (place, arrow) in arrows.iter().enumerate() {
            let (from, to, name) = (arrow.from.to_string(), arrow.to.to_string(), place.to_string());
            graph.set_edge(from, to, Some(EdgeLabel::default()), Some(&name));
        }
        let options = LayoutOptions {
            rankdir: RankDir::RL,
            nodesep: 16.0,
            edgesep: 12.0,
            ranksep: 110.0,
            marginx: MARGIN,
            marginy: MARGIN,
            ..LayoutOptions::default()
        };
        dagre::layout(&mut graph, Some(options));
        let is_paired = |arrow: &Arrow| {
            arrows
                .iter()
                .any(|other| (other.to, other.from) == (arrow.from, arrow.to))
        };
        Self {
            graph,
            paired: arrows.iter().map(is_paired).collect(),
        }
    }

    /// The place of a box.
    pub fn area(&self, place: usize) -> Option<Area> {
        let node = self.graph.node(&place.to_string())?;
        Some(Area {
            middle: (node.x?, node.y?),
            size: (node.width, node.height),
        })
    }

    /// The points of an arrow: around the boxes between its ends, and from side to side at these.
    pub fn way(&self, place: usize, arrow: &Arrow) -> Vec<Point> {
        let (Some(from), Some(to)) = (self.area(arrow.from), self.area(arrow.to)) else {
            return Vec::new();
        };
        let (tail, head, name) = (arrow.from.to_string(), arrow.to.to_string(), place.to_string());
        let edge = self.graph.edge(&tail, &head, Some(&name));
        let mut way = edge.map(|edge| edge.points.clone()).unwrap_or_default();
        if arrow.from == arrow.to {
            return way;
        }
        if let [first, .., last] = way.as_mut_slice() {
            (*first, *last) = if to.left() < from.left() {
                (
                    Point::new(from.left(), from.middle.1),
                    Point::new(to.right(), to.middle.1),
                )
            } else {
                (
                    Point::new(from.right(), from.middle.1),
                    Point::new(to.left(), to.middle.1),
                )
            };
        }
        // Between neighbouring columns nothing is in its way.
        if way.len() == 3 && !self.paired[place] {
            way.remove(1);
        }
        way
    }
}

// === impl Area ===

impl Area {
    /// Its left side.
    pub fn left(self) -> f64 {
        self.middle.0 - self.size.0 / 2.0
    }

    /// Its right side.
    pub fn right(self) -> f64 {
        self.middle.0 + self.size.0 / 2.0
    }

    /// Its upper side.
    pub fn top(self) -> f64 {
        self.middle.1 - self.size.1 / 2.0
    }

    /// Its lower side.
    pub fn bottom(self) -> f64 {
        self.middle.1 + self.size.1 / 2.0
    }
}
