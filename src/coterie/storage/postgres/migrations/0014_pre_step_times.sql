-- When a step or a wait began, in how many attempts it was done, and by which runner: for people. Empty for rows that an older
-- version has written. When it ended is `at`, once it is done.
alter table coterie.steps add column began_at timestamptz, add column attempts integer, add column runner text;
