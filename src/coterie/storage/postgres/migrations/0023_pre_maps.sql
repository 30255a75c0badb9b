-- Maps whose items are jobs: what the poll looks along for runs whose jobs are over.
create index steps_maps on coterie.steps (cluster, unit) where kind = 'map' and not done;
