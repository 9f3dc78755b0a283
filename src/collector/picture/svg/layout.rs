//! Layout of a drawing's boxes and arrows.

use dagre::{
    EdgeLabel, LayoutOptions, NodeLabel, Point, RankDir,
    graph::{Graph, GraphOptions},
};

/// Space around the drawing.
pub const MARGIN: f64 = 20.0;

/// An arrow from box to box.
pub struct Arrow {
    /// Index of its first box.
    pub from: usize,
    /// Index of its second box.
    pub to: usize,
    /// CSS class.
    pub class: &'static str,
}

/// Positions of boxes and arrows.
pub struct Layout {
    graph: Graph<NodeLabel, EdgeLabel>,
    /// Whether an arrow has one in the opposite direction.
    paired: Vec<bool>,
}

/// Position and size of a box.
#[derive(Clone, Copy)]
pub struct Area {
    middle: (f64, f64),
    /// Width and height.
    pub size: (f64, f64),
}

// === impl Layout ===

impl Layout {
    /// Computes the layout: columns, with arrows from right to left.
    pub fn compute(sizes: &[(f64, f64)], arrows: &[Arrow]) -> Self {
        // A multigraph: there may be an arrow in each direction.
        let mut graph = Graph::with_options(GraphOptions {
            directed: true,
            multigraph: true,
            compound: false,
        });
        // With boxes as wide as their column, no arrow comes out from behind a box.
        let width = sizes.iter().fold(0.0, |width: f64, size| width.max(size.0));
        for (index, &(_, height)) in sizes.iter().enumerate() {
            let label = NodeLabel {
                width,
                height,
                ..NodeLabel::default()
            };
            graph.set_node(index.to_string(), Some(label));
        }
        for (index, arrow) in arrows.iter().enumerate() {
            let (from, to, name) = (arrow.from.to_string(), arrow.to.to_string(), index.to_string());
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

    /// Position of a box.
    pub fn area(&self, index: usize) -> Option<Area> {
        let node = self.graph.node(&index.to_string())?;
        Some(Area {
            middle: (node.x?, node.y?),
            size: (node.width, node.height),
        })
    }

    /// Points of an arrow. It starts and ends at the sides of its boxes, and passes around the boxes in between.
    pub fn points(&self, index: usize, arrow: &Arrow) -> Vec<Point> {
        let (Some(from), Some(to)) = (self.area(arrow.from), self.area(arrow.to)) else {
            return Vec::new();
        };
        let (tail, head, name) = (arrow.from.to_string(), arrow.to.to_string(), index.to_string());
        let edge = self.graph.edge(&tail, &head, Some(&name));
        let mut points = edge.map(|edge| edge.points.clone()).unwrap_or_default();
        if arrow.from == arrow.to {
            return points;
        }
        if let [first, .., last] = points.as_mut_slice() {
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
        // Between adjacent columns there is no box to pass.
        if points.len() == 3 && !self.paired[index] {
            points.remove(1);
        }
        points
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
