-- When a step or a wait began, in how many attempts it was done, and by which runner: for people. Empty for rows that an older
-- version has written. When it ended is `at_ns`, once it is done.
alter table steps add column began_at_ns integer;
alter table steps add column attempts integer;
alter table steps add column runner text;
